"""The quickstart's task in TRL, the peer that overhead.py measures against; runs in an environment of its own.

usage: python tools/bench/trl_loop.py MODEL_DIRECTORY OUTPUT_DIRECTORY [STEPS]; prints one JSON line a step.
"""

from __future__ import annotations

import json
import re
import sys
import time
from typing import Any

import reasoning_gym
import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

PROMPTS, SAMPLES, NEW_TOKENS, LEARNING_RATE = 8, 8, 12, 4e-5


class StepPrinter:
    """A reward function that prints the time since the step before: TRL grades once a step."""

    __name__ = "exact_number"

    def __init__(self) -> None:
        self.step, self.before = 0, time.monotonic()

    def __call__(self, completions: list[list[dict[str, str]]], answer: list[str], **_: Any) -> list[float]:
        texts = [completion[0]["content"] for completion in completions]
        rewards = [float(re.findall(r"-?\d+", text)[-1:] == [right]) for text, right in zip(texts, answer, strict=True)]
        now = time.monotonic()
        figures = {"step": self.step, "reward": sum(rewards) / len(rewards), "step_s": now - self.before}
        print(json.dumps(figures), flush=True)
        self.step, self.before = self.step + 1, now
        return rewards


def main(model_directory: str, output_directory: str, steps: int) -> None:
    task = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    rows = [
        {
            "prompt": [
                {"role": "system", "content": "Answer with one number."},
                {"role": "user", "content": item["question"].split(":")[1].strip(" =") + " ="},
            ],
            "answer": item["answer"],
        }
        for item in reasoning_gym.create_dataset("chain_sum", size=PROMPTS * steps, seed=0, **task)
    ]
    settings = GRPOConfig(
        output_dir=output_directory,
        per_device_train_batch_size=PROMPTS * SAMPLES,
        num_generations=SAMPLES,
        max_completion_length=NEW_TOKENS,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        max_steps=steps,
        beta=0.0,
        bf16=True,
        use_cpu=True,
        report_to=[],
        logging_steps=1000,
        save_strategy="no",
        gradient_checkpointing=False,
        loss_type="grpo",
        weight_decay=0.0,
        max_grad_norm=1.0,
        dataloader_num_workers=0,
    )
    trainer = GRPOTrainer(
        model=model_directory,
        reward_funcs=StepPrinter(),
        args=settings,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(model_directory),
    )
    trainer.train()


if __name__ == "__main__":
    torch.set_num_threads(2)
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 20)
