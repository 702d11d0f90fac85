"""The quickstart's work as one plain loop in one process: transformers generate(), torch, AdamW. The baseline of overhead.py.

usage: python tools/bench/plain_loop.py MODEL_DIRECTORY [STEPS] [SEED]; prints one JSON line a step.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import reasoning_gym
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPTS, SAMPLES, NEW_TOKENS, LEARNING_RATE = 8, 8, 12, 4e-5


@dataclass(frozen=True)
class Step:
    """One training step.

    Attributes:
        model: as it is after the step.
        kept: samples that taught something.
    """

    model: Any
    reward: float
    generate_s: float
    train_s: float
    kept: int


def train(
    model_directory: str, steps: int, seed: int, learning_rate: float = LEARNING_RATE, updates: int = 1
) -> Iterator[Step]:
    """Train; the model goes on changing with each step that is asked for.

    Args:
        updates: optimizer steps on each batch, each on a share of the samples that teach something.
    """
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(model_directory, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(model_directory, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)
    task = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    items = iter(reasoning_gym.create_dataset("chain_sum", size=PROMPTS * steps, seed=seed, **task))
    for _ in range(steps):
        started = time.monotonic()
        batch = [next(items) for _ in range(PROMPTS)]
        chats = [
            [
                {"role": "system", "content": "Answer with one number."},
                {"role": "user", "content": item["question"].split(":")[1].strip(" =") + " ="},
            ]
            for item in batch
        ]
        prompts = tokenizer.apply_chat_template(
            chats, add_generation_prompt=True, return_tensors="pt", padding=True, return_dict=True
        )
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            tokens = model.generate(
                **prompts,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=NEW_TOKENS,
                num_return_sequences=SAMPLES,
                pad_token_id=2,
                eos_token_id=2,
            )
        tokens = tokens.clone()
        responses = tokens[:, prompts["input_ids"].shape[1] :]
        generated = time.monotonic()
        texts = tokenizer.batch_decode(responses, skip_special_tokens=True)
        rewards = torch.tensor(
            [float(re.findall(r"-?\d+", text)[-1:] == [batch[i // SAMPLES]["answer"]]) for i, text in enumerate(texts)]
        )
        groups = rewards.view(PROMPTS, SAMPLES)
        advantages = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).flatten()
        ends = (responses == 2).cumsum(1)
        mask = ((ends == 0) | ((responses == 2) & (ends == 1))).float()
        kept = (advantages.abs() > 1e-6).nonzero()[:, 0]
        size = -(-len(kept) // updates)
        for update in range(updates if len(kept) else 0):
            part = kept[torch.arange(update * size, (update + 1) * size) % len(kept)]
            attention = torch.cat([prompts["attention_mask"].repeat_interleave(SAMPLES, 0), torch.ones_like(responses)], 1)
            with torch.autocast("cpu", torch.bfloat16):
                logits = model(
                    input_ids=tokens[part], attention_mask=attention[part], logits_to_keep=responses.shape[1] + 1
                ).logits[:, :-1]
            logprobs = logits.float().log_softmax(-1).gather(-1, responses[part][..., None])[..., 0]
            ratio = torch.exp(logprobs - logprobs.detach())
            loss = -(ratio * advantages[part, None] * mask[part]).sum() / mask[part].sum()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        yield Step(model, rewards.mean().item(), generated - started, time.monotonic() - generated, len(kept))


def main(model_directory: str, steps: int, seed: int) -> None:
    for number, step in enumerate(train(model_directory, steps, seed)):
        figures = {"step": number, "reward": step.reward, "generate_s": step.generate_s, "train_s": step.train_s}
        print(json.dumps({**figures, "step_s": step.generate_s + step.train_s, "kept": step.kept}), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(2)
    main(sys.argv[1], *(int(argument) for argument in (sys.argv[2:] + ["20", "0"][len(sys.argv[2:]) :])))
