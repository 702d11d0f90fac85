"""``hpcrl submit`` checks whole recipes without the libraries that its jobs run on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

RECIPES = Path(__file__).parents[2] / "recipes"
HEAVY = {
    "torch", "transformers", "mlflow", "transfer_queue", "torchtitan", "datasets", "numpy", "pandas", "sympy", "matplotlib",
    "math_verify", "reasoning_gym", "huggingface_hub", "safetensors", "sglang", "pebble",
}  # fmt: skip
# Tells what was imported, even where the checks failed.
DRY = """
import sys
from hpcrl.cli.main import cli
try:
    cli(["submit", *sys.argv[1:], "--dry-run"], standalone_mode=False)
finally:
    print("imported:", *sorted(name for name in sys.modules if "." not in name))
"""


def dry(folder: Path, recipe: Path, *sets: str) -> tuple[int, str, set[str]]:
    """Exit code, what was said, and what was imported by a fresh process on a machine without Slurm."""
    site = folder / "site.toml"
    site.write_text('partition = "main"\n[node]\ngpus = 4\ncpus = 32\nmemory_gib = 62\n')
    command = [sys.executable, "-c", DRY, str(recipe), "--site", str(site), "--time", "10"]
    options = [part for text in sets for part in ("--set", text)]
    env = {**os.environ, "PATH": str(folder), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([*command, *options], env=env, cwd=folder, capture_output=True, text=True, check=False)
    said, _, imported = done.stdout.rpartition("imported: ")
    return done.returncode, said + done.stderr, set(imported.split())


def data_file(folder: Path) -> Path:
    path = folder / "train.jsonl"
    rows = [{"question": f"What is {n} + {n}?" + " please" * (40 * (n == 7)), "answer": f"#### {2 * n}"} for n in range(50)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_quickstart(tiny_model: Path, tmp_path: Path):
    code, said, imported = dry(tmp_path, RECIPES / "quickstart.py", f"model={tiny_model}")
    assert code == 0, said
    assert "nothing was queued" in said
    assert imported & HEAVY == set()


def test_prompts_are_counted_with_nothing_more(tiny_model: Path, tmp_path: Path):
    sets = (f"model={tiny_model}", "max_new_tokens=20", "groups.inference.role.max_context=60")
    code, said, imported = dry(tmp_path, RECIPES / "quickstart.py", *sets)
    assert code == 1
    assert "chain_sum item 0: prompt of " in said
    assert "more than the context of 60" in said
    assert "tokenizers" in imported
    assert imported & HEAVY == set()


def test_the_single_gpu_recipe(tiny_model: Path, tmp_path: Path):
    sets = (f"model={tiny_model}", f"data={data_file(tmp_path)}", "max_new_tokens=50", "max_prompt_tokens=200")
    sets = (*sets, "engine=embedded")
    code, said, imported = dry(tmp_path, RECIPES / "grpo_gsm8k.py", *sets)
    assert code == 1
    assert "train.jsonl:8: prompt of " in said
    assert said.count("more than the context") == 1
    assert imported & HEAVY == set()
