"""What hpcrl does on GPUs, checked and timed: the trainer on one card and on two over NCCL, the embedded engine, whole runs.

usage: python tools/gpu/smoke.py [--gpus N] [--only trainer,engine,run] [--out FOLDER]
N is 0, 1 or 2; left out, all cards are used, at most 2.

It needs torch with CUDA, transformers and hpcrl's other packages, no network and no model: models with random weights and a
tokenizer of single characters are made on the spot. A host without a network gets the other packages by `tools/gpu/bundle.sh`;
hpcrl itself need not be installed. `--gpus 0` runs the same on the CPU with tiny models, in a few minutes, to check the script.

- trainer: float32 and bfloat16, a world of one and of N (FSDP2): loss, gradient norm, saves, published weights and their
  hash in an engine; then step time and tokens/s of a model of SmolLM2-135M's shape.
- engine: tokens/s of that model, one sample at a time and many.
- run: `hpcrl run recipes/grpo_gsm8k.py`, inference and trainer in turn on one card, pacing window 1 and 2; with two cards
  both colocated on two, and one card for each. The reward is the share of digits in the response, so any model can learn it.

Prints a table last and leaves FOLDER/smoke.json; exit code 1 if a check failed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import platform
import runpy
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from hpcrl.recipe import Recipe  # noqa: E402 - the checkout must be found first

# Deadline of one process or run [s].
PART_S = 240.0
SMOLLM2 = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9}
TINY = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
CHARACTERS = 128
FAMILIES = ("llama", "qwen2", "qwen3")


def recipe(model: str, data: str, lr: float = 2e-4, window: int | None = 1) -> Recipe:
    """The documented recipe with a card for inference and one for the trainer, instead of one for both in turn."""
    made: Recipe = runpy.run_path(str(ROOT / "recipes" / "grpo_gsm8k.py"))["recipe"](
        model=model, data=data, lr=lr, window=window, engine="embedded"
    )
    return replace(made, rings=())


def digits(response: str, item: Mapping[str, Any]) -> float:
    """The reward: the share of digits in the response."""
    return sum(character.isdigit() for character in response) / max(1, len(response))


def make_model(folder: Path, family: str, shape: Mapping[str, int], vocabulary: int) -> Path:
    """A model with random weights in Hugging Face layout, and a tokenizer that splits text into characters."""
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import (
        GenerationConfig,
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedTokenizerFast,
        Qwen2Config,
        Qwen2ForCausalLM,
        Qwen3Config,
        Qwen3ForCausalLM,
    )

    kinds: Any = {
        "llama": (LlamaConfig, LlamaForCausalLM),
        "qwen2": (Qwen2Config, Qwen2ForCausalLM),
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    }
    config, model = kinds[family]
    torch.manual_seed(0)
    heads = shape["num_attention_heads"]
    made = model(
        config(
            **shape,
            vocab_size=vocabulary,
            num_key_value_heads=heads // 3 if heads % 3 == 0 else heads // 2,
            head_dim=shape["hidden_size"] // heads,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=1,
        )
    )
    made.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=1, pad_token_id=1)
    made.save_pretrained(folder)
    special = ["<|im_start|>", "<|im_end|>", "<unk>"]
    tokens = {token: number for number, token in enumerate(special + [chr(code) for code in range(32, 127)])}
    tokenizer = Tokenizer(models.WordLevel(tokens, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=special[0], eos_token=special[1], pad_token=special[1], unk_token=special[2]
    )
    fast.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>{% endif %}"
    )
    fast.save_pretrained(folder)
    return folder


def make_batch(seed: int, size: Mapping[str, int], vocabulary: int) -> list[Any]:
    """Groups of random responses to random prompts."""
    import numpy as np

    from hpcrl.engines.titan.samples import Sample

    rng = np.random.default_rng(seed)
    samples = []
    for group in range(size["prompts"]):
        prompt = rng.integers(2, vocabulary, size["prompt"]).astype(np.int32)
        for _ in range(size["samples"]):
            response = rng.integers(2, vocabulary, rng.integers(size["response"] // 2, size["response"] + 1)).astype(np.int32)
            behaviour = rng.normal(-math.log(vocabulary), 0.1, len(response)).astype(np.float32)
            samples.append(
                Sample(
                    prompt_ids=prompt,
                    response_ids=response,
                    behaviour_logprobs=behaviour,
                    advantage=float(rng.normal()),
                    group=group,
                )
            )
    return samples


def train(job: dict[str, Any]) -> dict[str, Any]:
    """One case on one rank: steps, a published version in an engine, a save and its reload."""
    import torch

    from hpcrl.checkpoint.hashing import hash_tensors
    from hpcrl.checkpoint.publish.publisher import Publisher
    from hpcrl.checkpoint.publish.versions import version_path
    from hpcrl.checkpoint.state.saver import About, Saved
    from hpcrl.engines.embedded.engine import EmbeddedEngine
    from hpcrl.engines.embedded.settings import EngineSettings
    from hpcrl.engines.titan.settings import TrainerSettings, World
    from hpcrl.engines.titan.trainer import TitanTrainer

    rank, ranks, folder, gpu = job["rank"], job["ranks"], Path(job["folder"]), job["gpu"]
    ports = iter(job["ports"])
    settings = TrainerSettings(model=job["model"], lr=1e-5, compute_dtype=job["dtype"], tokens_per_microbatch=job["budget"])

    def start() -> TitanTrainer:
        gpus = (0,) if gpu else ()
        return TitanTrainer(settings, World(rank=rank, world_size=ranks, cpus=job["cpus"], gpus=gpus, world_port=next(ports)))

    def batch(seed: int) -> list[Any] | None:
        return make_batch(seed, job["size"], job["vocabulary"]) if rank == 0 else None

    trainer = start()
    found: dict[str, Any] = {"steps": []}
    if job["dtype"] == "float32":
        scored = trainer.logprobs(batch(50))
        found["logprob_error"] = _logprob_error(job, scored) if rank == 0 else 0.0
    for seed in range(job["steps"]):
        found["steps"].append(trainer.train_batch(batch(seed)))
    published = Publisher(
        folder / "weights",
        Path(job["model"]),
        trainer.hf_specs(),
        attempt=1,
        rank=rank,
        ranks=ranks,
        exchange=trainer.exchange,
    ).publish(1, trainer.hf_tensors())
    found["hash"] = published.hash
    trainer.begin_save(folder / "state", About() if rank == 0 else None)
    found["loss_before_save"] = trainer.train_batch(batch(99))["loss"]
    ended = trainer.finish_save(seconds=600)
    if not isinstance(ended, Saved):
        raise RuntimeError(f"rank {rank}: {ended}")
    found["save_stalled_s"] = ended.stalled_s
    # The save is committed for all once rank 0 has seen it.
    trainer.say(0)
    trainer.close()
    resumed = start()
    resumed.load_state(folder / "state")
    found["hash_reloaded"] = hash_tensors(dict(resumed.hf_tensors()))
    found["loss_after_load"] = resumed.train_batch(batch(99))["loss"]
    if (other := Path(job["other_state"])).is_dir():
        made = resumed.load_state(other)
        found["other"] = [made and made.mesh.world_size, hash_tensors(dict(resumed.hf_tensors()))]
    resumed.close()
    if rank == 0:
        engine = EmbeddedEngine(
            EngineSettings(model_path=Path(job["model"]), dtype="bfloat16", device="cuda:0" if gpu else "cpu", max_context=256)
        )
        path = version_path(folder / "weights", 1)
        found["hash_engine"] = engine.update_weights(path, "1", expect_hash=published.hash).hash
        engine.stop()
    if gpu:
        found["gpu_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return found


def _logprob_error(job: Mapping[str, Any], scored: Sequence[Any]) -> float:
    import torch
    from transformers import AutoModelForCausalLM

    device = "cuda:0" if job["gpu"] else "cpu"
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32, attn_implementation="eager").to(device)
    worst = 0.0
    for sample, ours in zip(make_batch(50, job["size"], job["vocabulary"]), scored, strict=True):
        ids = torch.tensor([[*sample.prompt_ids.tolist(), *sample.response_ids.tolist()]], device=device)
        start = len(sample.prompt_ids)
        with torch.no_grad():
            table = model(ids).logits[0, start - 1 : -1].log_softmax(-1)
        theirs = table.gather(1, ids[0, start:, None])[:, 0].cpu()
        worst = max(worst, float((torch.from_numpy(ours) - theirs).abs().max()))
    return worst


def generate(job: dict[str, Any]) -> dict[str, Any]:
    """Tokens a second of the embedded engine, by the number of samples at a time."""
    from hpcrl.engines.embedded.engine import EmbeddedEngine
    from hpcrl.engines.embedded.settings import EngineSettings

    device = "cuda:0" if job["gpu"] else "cpu"
    engine = EmbeddedEngine(
        EngineSettings(
            model_path=Path(job["model"]),
            dtype="bfloat16",
            device=device,
            threads=job["cpus"],
            chunk_tokens=8,
            max_context=1024,
        )
    )
    found = {}
    for rows in (1, *job["rows"]):
        prompts = [[2 + (17 * row + i) % 90 for i in range(job["prompt"])] for row in range(rows)]
        sampling: list[Mapping[str, Any]] = [{"max_new_tokens": job["new"], "temperature": 1.0, "ignore_eos": True}] * rows
        for timed in (False, True):
            started = time.perf_counter()
            made = engine.submit(prompts, sampling, return_logprob=True).result(PART_S)
            seconds = time.perf_counter() - started
            if timed:
                found[str(rows)] = sum(len(sequence.tokens) for sequence in made) / seconds
    engine.stop()
    return found


class Smoke:
    """The parts, their figures and what failed."""

    def __init__(self, gpus: int, out: Path) -> None:
        self.gpus, self.out = gpus, out
        self.rows: list[tuple[str, str]] = []
        self.failed: list[str] = []
        self.raw: dict[str, Any] = {}
        self.cpus = max(1, (os.cpu_count() or 1) // max(1, gpus)) if gpus else 1
        shape = SMOLLM2 if gpus else TINY
        self.tiny = {family: make_model(out / f"tiny-{family}", family, TINY, CHARACTERS) for family in FAMILIES}
        self.model = make_model(out / "smollm2-shape", "llama", shape, 49_152 if gpus else CHARACTERS)
        self.speller = make_model(out / "characters", "llama", shape, CHARACTERS)

    def note(self, name: str, shown: str) -> None:
        """A line of the table."""
        self.rows.append((name, shown))
        print(f"{name}: {shown}", flush=True)

    def check(self, name: str, passed: bool, shown: str) -> None:
        """A line of the table that says whether a check passed."""
        self.note(name, f"{shown}  {'ok' if passed else 'FAILED'}")
        if not passed:
            self.failed.append(name)

    def trainer(self) -> None:
        """The trainer in every world, and the worlds against each other."""
        small = {"prompts": 6, "samples": 4, "prompt": 12, "response": 24}
        large = {"prompts": 64, "samples": 8, "prompt": 128, "response": 256} if self.gpus else small
        big = {"vocabulary": 49_152, "budget": 16_384} if self.gpus else {"vocabulary": CHARACTERS, "budget": 256}
        name = "135M" if self.gpus else "small"
        tiny = {"vocabulary": CHARACTERS, "budget": 128, "size": small, "steps": 3}
        cases: dict[str, dict[str, Any]] = {
            "llama fp32": {**tiny, "model": str(self.tiny["llama"]), "dtype": "float32"},
            "qwen2 fp32": {**tiny, "model": str(self.tiny["qwen2"]), "dtype": "float32"},
            "qwen2 bf16": {**tiny, "model": str(self.tiny["qwen2"]), "dtype": "bfloat16"},
            "qwen3 fp32": {**tiny, "model": str(self.tiny["qwen3"]), "dtype": "float32"},
            "qwen3 bf16": {**tiny, "model": str(self.tiny["qwen3"]), "dtype": "bfloat16"},
            f"{name} fp32": {**big, "model": str(self.model), "dtype": "float32", "size": small, "steps": 3},
            f"{name} bf16": {
                **big,
                "model": str(self.model),
                "dtype": "bfloat16",
                "size": large,
                "steps": 8 if self.gpus else 3,
            },
        }
        worlds = [2, 1] if self.gpus != 1 else [1]
        self.raw["trainer"] = {ranks: self._world(ranks, cases) for ranks in worlds}
        for ranks in reversed(worlds):
            for name in cases:
                self._check_case(ranks, name, self.raw["trainer"][ranks][name])
        if len(worlds) == 2:
            for name in cases:
                self._compare(name, *(self.raw["trainer"][ranks][name] for ranks in (1, 2)))

    def _world(self, ranks: int, cases: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        jobs: list[list[dict[str, Any]]] = [[] for _ in range(ranks)]
        for name, case in cases.items():
            folder = self.out / f"world-{ranks}" / name.replace(" ", "-")
            ports = free_ports(2)
            for rank in range(ranks):
                other = self.out / "world-2" / folder.name / "state" if ranks == 1 else ""
                more = {"rank": rank, "ranks": ranks, "ports": ports, "gpu": self.gpus > 0, "cpus": self.cpus}
                jobs[rank].append(
                    {"do": "train", "name": name, **case, **more, "folder": str(folder), "other_state": str(other)}
                )
        answers: dict[str, Any] = run_jobs(jobs, self.out / f"world-{ranks}", self.gpus)[0]
        return answers

    def _check_case(self, ranks: int, name: str, found: Mapping[str, Any]) -> None:
        title = f"trainer {name}, {ranks} rank{'s' if ranks > 1 else ''}"
        last = found["steps"][-1]
        if "logprob_error" in found:
            error = found["logprob_error"]
            self.check(f"{title}: |log-prob - transformers|", error < 1e-4, f"{error:.1e}")
        same = found["hash"] == found["hash_reloaded"] == found["hash_engine"]
        self.check(f"{title}: hash of trainer, reload, engine", same, found["hash"][:12])
        gap = abs(found["loss_before_save"] - found["loss_after_load"])
        self.check(f"{title}: loss after reload", gap < (1e-6 if "fp32" in name else 1e-3), f"differs by {gap:.1e}")
        if name in ("135M bf16", "small bf16"):
            timed = found["steps"][2:] or found["steps"]
            middle = {key: median(step[key] for step in timed) for key in last}
            packed = middle["tokens_packed"] / middle["train_s"]
            self.note(f"{title}: step", f"{middle['train_s']:.3f} s for {last['tokens']:.0f} response tokens")
            self.note(f"{title}: tokens/s", f"{middle['tokens_per_s']:.0f} response, {packed:.0f} computed")
            parts = ", ".join(f"{key[:-2]} {middle[key]:.3f}" for key in ("pack_s", "forward_s", "backward_s", "optimizer_s"))
            self.note(f"{title}: seconds", f"{parts}; memory {found.get('gpu_gib', 0):.1f} GiB")

    def _compare(self, name: str, one: Mapping[str, Any], two: Mapping[str, Any]) -> None:
        pairs = list(zip(one["steps"], two["steps"], strict=True))
        loss = max(abs(a["loss"] - b["loss"]) for a, b in pairs)
        norm = max(abs(a["grad_norm"] / b["grad_norm"] - 1) for a, b in pairs)
        most = (1e-5, 1e-4) if "fp32" in name else (5e-3, 5e-2)
        self.check(
            f"trainer {name}, 2 ranks against 1", loss < most[0] and norm < most[1], f"loss {loss:.1e}, norm {norm:.1e} rel."
        )
        made, digest = one["other"]
        same = made == 2 and digest == two["hash"]
        self.check(f"trainer {name}, save of 2 ranks loaded by 1", same, digest[:12])

    def engine(self) -> None:
        """The embedded engine's speed."""
        size = {"rows": [64, 256], "prompt": 128, "new": 128} if self.gpus else {"rows": [4], "prompt": 8, "new": 16}
        job = {"do": "generate", "name": "engine", "model": str(self.model), "gpu": self.gpus > 0, "cpus": self.cpus, **size}
        self.raw["engine"] = run_jobs([[job]], self.out / "engine", self.gpus)[0]["engine"]
        for rows, rate in self.raw["engine"].items():
            self.note(f"engine bf16, {rows} sample{'s' if rows != '1' else ''} at a time", f"{rate:.0f} tokens/s")

    def run(self) -> None:
        """Whole runs through `hpcrl run`."""
        data = self.out / "sums.jsonl"
        lines = [{"question": f"What is {a} + {b}?", "answer": f"#### {a + b}"} for a in range(16) for b in range(16)]
        data.write_text("".join(json.dumps(line) + "\n" for line in lines))
        base = {
            "model": self.speller,
            "data": data,
            "lr": 2e-4,
            "reward.function": f"{Path(__file__).resolve()}:digits",
            "engine": "embedded",
            "schedule.steps": 6 if self.gpus else 2,
            "schedule.prompts_per_step": 16 if self.gpus else 2,
            "schedule.samples_per_prompt": 8,
            "rollout.sampling.max_new_tokens": 64 if self.gpus else 16,
            "trainer.gpus": min(1, self.gpus),
            "inference.gpus": min(1, self.gpus),
            "trainer.cpus": self.cpus,
            "inference.cpus": self.cpus,
            "reward.cpus": 2,
        }
        documented, apart = ROOT / "recipes" / "grpo_gsm8k.py", Path(__file__).resolve()
        runs: dict[str, tuple[Path, dict[str, Any]]] = {
            "colocated, window 1": (documented, {"window": 1}),
            "colocated, window 2": (documented, {"window": 2}),
        }
        if self.gpus > 1:
            pair = {"trainer.replicas": 2, "inference.replicas": 2}
            runs = {
                "2+2 colocated, window 1": (documented, {"window": 1, **pair}),
                "1+1 apart, window 1": (apart, {"window": 1}),
                "1+1 apart, window 2": (apart, {"window": 2}),
            }
        for name, (path, more) in runs.items():
            self._one_run(name, path, {**base, **more})

    def _one_run(self, name: str, path: Path, sets: Mapping[str, Any]) -> None:
        from hpcrl.tracking.journal import JournalReader

        folder = self.out / "runs" / name.replace(", ", "-").replace(" ", "-")
        command = [sys.executable, "-m", "hpcrl.cli.main", "run", str(path), "--run-dir", str(folder)]
        command += [part for key, value in sets.items() for part in ("--set", f"{key}={value}")]
        started = time.perf_counter()
        done = subprocess.run(
            command, env=environment(), capture_output=True, text=True, timeout=PART_S, stdin=subprocess.DEVNULL
        )
        seconds = time.perf_counter() - started
        print(done.stdout[-3000:], done.stderr[-3000:], sep="\n", flush=True)
        title = f"run {name}"
        records = [record for _, record in JournalReader(folder / "latest" / "journal").read()] if folder.is_dir() else []
        steps = [record for record in records if record["kind"] == "step"]
        self.raw.setdefault("runs", {})[name] = steps
        self.check(f"{title}: exit code", done.returncode == 0, f"{done.returncode} in {seconds:.0f} s")
        if done.returncode or not steps:
            for log in sorted((folder / "latest" / "logs").glob("*.log")):
                print(f"--- {log.name}\n{log.read_text()[-2500:]}", flush=True)
            return
        rewards = [step["reward"] for step in steps]
        self.check(f"{title}: reward", rewards[-1] > rewards[0] or not self.gpus, f"{rewards[0]:.3f} -> {rewards[-1]:.3f}")
        served = {record["version"] for record in records if record["kind"] == "served"}
        self.check(f"{title}: versions served", max(served) >= len(steps) - 1, f"{len(served)} of {len(steps) + 1}")
        lag = max(step["version_lag_max"] for step in steps)
        self.check(f"{title}: version lag", lag < sets["window"], f"{lag}")
        timed = steps[2:] or steps
        middle = {key: median(step[key] for step in timed) for key in ("step_s", "wait_s", "train_s", "publish_s")}
        tokens = median(step["response_tokens"] for step in timed) * sets["schedule.prompts_per_step"] * 8
        parts = ", ".join(f"{key[:-2]} {value:.2f}" for key, value in middle.items())
        self.note(f"{title}: seconds", f"{parts}; {tokens / middle['step_s']:.0f} tokens/s")
        if importlib.util.find_spec("mlflow") is None:
            said = done.stderr.count("MLflow is not installed")
            self.check(f"{title}: missing MLflow is said", said == 1, f"{said} times")


def free_ports(count: int) -> list[int]:
    """Ports of this host that are free now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [held.getsockname()[1] for held in sockets]
    for held in sockets:
        held.close()
    return ports


def environment() -> dict[str, str]:
    """This process's own, with the checkout to import from and nothing that reaches outside."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}


def run_jobs(jobs: Sequence[Sequence[dict[str, Any]]], folder: Path, gpus: int) -> list[dict[str, Any]]:
    """Each list of jobs in a process that sees one card; returns the answers of each, by the job's name."""
    folder.mkdir(parents=True, exist_ok=True)
    processes = []
    for number, mine in enumerate(jobs):
        path = folder / f"jobs-{number}.json"
        path.write_text(json.dumps(mine))
        env = {**environment(), "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "OMP_NUM_THREADS": str(mine[0]["cpus"])}
        env["CUDA_VISIBLE_DEVICES"] = str(number) if gpus else ""
        with open(folder / f"log-{number}", "w") as log:
            command = [sys.executable, __file__, "--jobs", str(path)]
            processes.append(subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT))
    deadline = time.monotonic() + PART_S
    try:
        while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
            if any(process.poll() for process in processes):
                time.sleep(5)
                break
            time.sleep(0.2)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    if any(process.returncode for process in processes):
        logs = "\n".join((folder / f"log-{number}").read_text()[-4000:] for number in range(len(jobs)))
        raise RuntimeError(f"{folder.name}: exit codes {[process.returncode for process in processes]}\n{logs}")
    return [json.loads((folder / f"jobs-{number}.done.json").read_text()) for number in range(len(jobs))]


def do_jobs(path: Path) -> None:
    """The inside of :func:`run_jobs`."""
    doers: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"train": train, "generate": generate}
    answers = {}
    for job in json.loads(path.read_text()):
        print(f"{time.strftime('%X')} {job['name']}", flush=True)
        answers[job["name"]] = doers[job["do"]](job)
    path.with_suffix(".done.json").write_text(json.dumps(answers))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, choices=(0, 1, 2))
    parser.add_argument("--only", default="trainer,engine,run")
    parser.add_argument("--out", type=Path, default=Path("build/gpu-smoke"))
    parser.add_argument("--jobs", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.jobs:
        do_jobs(given.jobs)
        return 0
    import torch
    import transformers

    gpus = min(2, torch.cuda.device_count()) if given.gpus is None else given.gpus
    out = given.out.absolute()
    shutil.rmtree(out, ignore_errors=True)
    smoke = Smoke(gpus, out)
    device = torch.cuda.get_device_name(0) if gpus else f"CPU ({os.cpu_count()} cores)"
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}"
    smoke.note("device", f"{gpus} x {device}" if gpus else device)
    smoke.note("versions", versions)
    for part in given.only.split(","):
        started = time.perf_counter()
        try:
            getattr(smoke, part)()
        except Exception as error:  # noqa: BLE001 - the other parts are to be seen all the same
            print(f"=== {part}: {type(error).__name__}: {error}", flush=True)
            smoke.check(part, False, f"{type(error).__name__}, see above")
        print(f"=== {part}: {time.perf_counter() - started:.0f} s", flush=True)
        (out / "smoke.json").write_text(json.dumps({"rows": smoke.rows, "failed": smoke.failed, "raw": smoke.raw}, indent=1))
    width = max(len(name) for name, _ in smoke.rows)
    for name, shown in smoke.rows:
        print(f"{name:<{width}}  {shown}")
    return 1 if smoke.failed else 0


if __name__ == "__main__":
    sys.exit(main())
