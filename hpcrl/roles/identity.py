"""What a recipe trains with: the identity that a run keeps when it goes on."""

from __future__ import annotations

from hpcrl.checkpoint.state.identity import Identity, accept, check_identity, model_fingerprint, tokenizer_fingerprint
from hpcrl.checkpoint.state.layout import StateError
from hpcrl.checkpoint.state.manifest import newest
from hpcrl.data.dataset import Dataset
from hpcrl.data.models import resolve_model
from hpcrl.recipe import Recipe
from hpcrl.roles.trainer import Trainer
from hpcrl.run.directory import RunDirectory
from hpcrl.run.errors import CheckFailed


def recipe_identity(recipe: Recipe) -> Identity:
    """Of the trainer's model, and of every dataset with the tokenizer that its prompts are encoded with.

    Raises:
        CheckFailed: a model is not there.
        OSError: a file cannot be read.
    """
    model: dict[str, str] = {}
    tokenizer: dict[str, str] = {}
    dataset: dict[str, str] = {}
    for name, group in recipe.groups.items():
        role = group.role
        if isinstance(role, Trainer):
            model |= model_fingerprint(resolve_model(role.model))
        data = getattr(role, "dataset", None)
        if isinstance(data, Dataset):
            dataset |= {f"of {name}, {key}": value for key, value in data.fingerprint().items()}
            if encoder := getattr(role, "model", None):
                tokenizer |= tokenizer_fingerprint(resolve_model(encoder))
    return Identity(model, tokenizer, dataset)


def check_resume(run: RunDirectory, recipe: Recipe, *, force: bool) -> None:
    """Refuse to go on with another model, tokenizer or dataset than that of the newest save, before anything starts.

    Args:
        force: go on all the same; the trainer, which checks it again, is let know.

    Raises:
        CheckFailed: shows the difference; or the save is of another run or a later version of hpcrl.
    """
    try:
        saved = newest(run.state, run.run_id)
        if saved is None:
            return
        try:
            now = recipe_identity(recipe)
        except (OSError, CheckFailed):
            # Here it may be that only a compute node sees them.
            if force:
                raise
            return
        if force:
            accept(run.state, now)
        else:
            check_identity(run.state, saved.identity, now)
    except StateError as error:
        raise CheckFailed([str(error)]) from error
    except OSError as error:
        raise CheckFailed([f"what run {run.path} goes on with cannot be looked at: {error}"]) from error
