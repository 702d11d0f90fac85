"""Whether every prompt of a dataset, with its response, fits the model's context."""

from __future__ import annotations

from pathlib import Path

from hpcrl.data.dataset import Dataset
from hpcrl.data.tokenizer import open_encoder
from hpcrl.run.errors import CheckFailed

# Of a procedural dataset, whose items all come from one generator.
_PROCEDURAL_ITEMS = 2000
_MOST_PROBLEMS = 20


def prompt_problems(dataset: Dataset, model: Path, *, max_new_tokens: int, context: int | None) -> list[str]:
    """What is wrong with a dataset for a model, a sentence each, every item named by file and line or number.

    Args:
        context: positions for prompt and response together [tokens]; None if not known.
    """
    try:
        prompts = dataset.open()
        items = (
            prompts[index] for index in range(min(len(prompts), _PROCEDURAL_ITEMS) if dataset.procedural else len(prompts))
        )
        lengths = open_encoder(model).lengths(items, None if context is None else context - max_new_tokens)
    except CheckFailed as failed:
        return list(failed.problems)
    except (OSError, ValueError) as error:
        return [f"the tokenizer in {model} cannot be loaded: {error}"]
    if len(prompts) == 0:
        return [f"dataset {dataset!r} is empty"]
    problems: list[str] = []
    try:
        for item, length in lengths:
            if length == 0:
                problems.append(f"{item.source}: the prompt has no tokens")
            elif context is not None and length is not None and length + max_new_tokens > context:
                problems.append(
                    f"{item.source}: prompt of {length} tokens and max_new_tokens {max_new_tokens} make "
                    f"{length + max_new_tokens}, more than the context of {context}"
                )
            if len(problems) >= _MOST_PROBLEMS:
                break
    except ValueError as error:
        # A template that refuses one refuses most.
        problems.append(str(error))
    return problems
