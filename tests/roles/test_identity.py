import json
import shutil

import pytest

from hpcrl.checkpoint.state.identity import Identity
from hpcrl.checkpoint.state.manifest import Manifest, write_manifest
from hpcrl.data.procedural import ReasoningGym
from hpcrl.data.records import Records
from hpcrl.engines.completion import Sampling
from hpcrl.recipe import Recipe, RoleGroup, Schedule
from hpcrl.roles.identity import check_resume, recipe_identity
from hpcrl.roles.rollout import Rollout
from hpcrl.roles.samples import samples_stream
from hpcrl.roles.trainer import Trainer
from hpcrl.run.directory import RunDirectory
from hpcrl.run.errors import CheckFailed


@pytest.fixture
def files(tmp_path, tiny_model):
    shutil.copytree(tiny_model, tmp_path / "model")
    (tmp_path / "data.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')
    return tmp_path


def make(files, dataset=None):
    model = str(files / "model")
    dataset = dataset or Records(paths=(str(files / "data.jsonl"),))
    return Recipe(
        name="t",
        groups={
            "trainer": RoleGroup(role=Trainer(model=model)),
            "rollout": RoleGroup(role=Rollout(model=model, dataset=dataset, sampling=Sampling(max_new_tokens=8))),
        },
        streams=(samples_stream(samples_per_prompt=2),),
        schedule=Schedule(steps=2, prompts_per_step=2, samples_per_prompt=2),
    )


def saved_run(files, identity):
    run = RunDirectory.create(files / "run", name="t", recipe_json="{}")
    manifest = Manifest(run_id=run.run_id, attempt=1, step=1, number=1, identity=identity)
    (run.state / str(manifest.name)).mkdir()
    write_manifest(run.state, manifest)
    return run


def test_moving_the_files_changes_nothing_and_changing_them_does(files):
    before = recipe_identity(make(files))
    assert set(before.model) == {"config.json", "model.safetensors"}
    assert "tokenizer.json" in before.tokenizer
    assert before.dataset["of rollout, kind"] == "Records"
    moved = files / "moved"
    shutil.copytree(files, moved)
    assert recipe_identity(make(moved)) == before
    (moved / "data.jsonl").write_text('{"prompt": "a", "answer": "c"}\n')
    after = recipe_identity(make(moved))
    assert (after.model, after.tokenizer) == (before.model, before.tokenizer)
    assert {name for name in after.dataset if after.dataset[name] != before.dataset[name]} == {"of rollout, file 1"}


def test_other_settings_are_another_dataset(files):
    plain, other = (Records(paths=(str(files / "data.jsonl"),), system=system) for system in ("", "be kind"))
    assert recipe_identity(make(files, plain)) != recipe_identity(make(files, other))
    one, two = (recipe_identity(make(files, ReasoningGym(task="chain_sum", seed=seed))) for seed in (1, 2))
    assert one.dataset["of rollout, reasoning-gym"] == two.dataset["of rollout, reasoning-gym"]
    assert one != two


def test_a_run_goes_on_only_with_what_it_was_made_with_unless_forced(files):
    run = saved_run(files, recipe_identity(make(files)))
    check_resume(run, make(files), force=False)
    config = json.loads((files / "model" / "config.json").read_text())
    (files / "model" / "config.json").write_text(json.dumps({**config, "rope_theta": 5e5}))
    with pytest.raises(CheckFailed, match=r"made with something else:\n  - model config\.json: was .*\n.*--force"):
        check_resume(run, make(files), force=False)
    check_resume(run, make(files), force=True)
    check_resume(run, make(files), force=False)
    (files / "data.jsonl").write_text("{}")
    with pytest.raises(CheckFailed, match=r"dataset of rollout, file 1: was"):
        check_resume(run, make(files), force=False)


def test_a_run_without_a_save_goes_on_with_anything(files):
    run = RunDirectory.create(files / "run", name="t", recipe_json="{}")
    check_resume(run, make(files), force=False)


def test_what_only_compute_nodes_see_is_left_to_the_trainer(files):
    run = saved_run(files, Identity(model={"config.json": "1"}))
    shutil.rmtree(files / "model")
    check_resume(run, make(files), force=False)
    with pytest.raises(CheckFailed, match="does not exist"):
        check_resume(run, make(files), force=True)


def test_a_save_of_a_later_version_is_refused(files):
    run = RunDirectory.create(files / "run", name="t", recipe_json="{}")
    manifest = Manifest(run_id=run.run_id, attempt=1, step=1, number=1, layout=9)
    (run.state / str(manifest.name)).mkdir()
    write_manifest(run.state, manifest)
    with pytest.raises(CheckFailed, match="layout 9"):
        check_resume(run, make(files), force=True)
