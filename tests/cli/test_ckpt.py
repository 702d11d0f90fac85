"""On a run whose saves and versions the trainer itself has made."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hpcrl.checkpoint.cursor import read_cursor
from hpcrl.checkpoint.publish.retain import discard
from hpcrl.checkpoint.state.layout import look
from hpcrl.checkpoint.state.manifest import mark_damaged
from hpcrl.checkpoint.view.verify import verify_save, verify_versions
from hpcrl.cli import ckpt as ckpt_module
from hpcrl.cli.ckpt_look import look_at
from hpcrl.cli.main import cli
from hpcrl.run.directory import RunDirectory
from hpcrl.run.errors import CheckFailed
from hpcrl.run.sealed import read_sealed, write_sealed
from hpcrl.tracking.journal import Journal

pytestmark = pytest.mark.slow
Flip = Callable[[Path], None]


def call(run: RunDirectory, what: str, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["ckpt", what, str(run.path), *arguments])


def read(run: RunDirectory, what: str, *arguments: str, code: int = 0) -> Any:
    done = call(run, what, *arguments, "--json")
    assert done.exit_code == code, (done.output, done.exception)
    return json.loads(done.stdout)


def problem(done: Result) -> str:
    assert isinstance(done.exception, CheckFailed), (done.output, done.exception)
    return str(done.exception)


def saves(run: RunDirectory) -> list[int]:
    return [name.step for name in look(run.state).committed]


def folders(run: RunDirectory) -> list[str]:
    return sorted(path.name for path in run.weights.iterdir())


def save_of(run: RunDirectory, step: int) -> Path:
    return run.state / f"step-{step:08d}.a1.{step}"


def test_list(trained: RunDirectory) -> None:
    held = read(trained, "list")
    assert [(one["step"], one["attempt"], one["version"], one["state"]) for one in held["saves"]] == [
        (step, 1, step, "committed") for step in (1, 2, 3, 4)
    ]
    assert [one["kept"] for one in held["saves"]] == [[], ["of the newest 3"], ["of the newest 3"], ["the newest"]]
    assert [(one["version"], one["kind"], one["previous"]) for one in held["versions"]] == [
        (0, "base", None),
        (1, "patch", 0),
        (2, "patch", 1),
        (3, "base", None),
        (4, "patch", 3),
    ]
    assert [one["kept"] for one in held["versions"]][2:] == [
        [],
        ["of the newest 2", "version 4 is built on it"],
        ["the newest"],
    ]
    assert held["resume"] == {"save": "step-00000004.a1.4", "step": 4}
    assert held["keeping"]["saves"]["last"] == 3
    assert (held["live"], held["unfinished"]) == (False, [])
    assert held["saves"][0]["bytes"] == sum(file.stat().st_size for file in save_of(trained, 1).iterdir())
    text = call(trained, "list").output
    assert "a resume goes on from step 4, save step-00000004.a1.4" in text
    assert "the newest; a resume goes on from it" in text
    assert text.count("committed") == 9


def test_what_is_not_whole_is_named_and_the_resume_is_that_of_the_trainer(trained: RunDirectory) -> None:
    (save_of(trained, 4) / "manifest.json").unlink()
    (save_of(trained, 3) / "__0_0.distcp").write_bytes(b"short")
    (trained.weights / "v000004" / "version.json").unlink()
    (trained.weights / "v000001" / "patch.safetensors").unlink()
    shutil.copytree(trained.weights / "v000000", trained.weights / ".v000000.abcd")
    held = read(trained, "list")
    assert [one["state"] for one in held["saves"]] == ["committed", "committed", "damaged", "partial"]
    assert "__0_0.distcp has 5 bytes" in held["saves"][2]["problem"]
    assert held["resume"]["step"] == 2
    assert [one["state"] for one in held["versions"]] == ["committed", "damaged", "damaged", "committed"]
    assert "patch.safetensors is missing" in held["versions"][1]["problem"]
    assert held["versions"][2]["problem"] == "it is a patch on version 1, which is damaged"
    assert [Path(one["path"]).name for one in held["unfinished"]] == [".v000000.abcd", "v000004"]
    text = call(trained, "list").output
    assert "no manifest: being written, or left by a process that ended" in text
    assert "a resume goes on from step 2" in text


def test_saves_of_another_run_and_from_the_future(trained: RunDirectory) -> None:
    path = save_of(trained, 4) / "manifest.json"
    write_sealed(path, read_sealed(path) | {"run_id": "another"})
    held = read(trained, "list")
    assert held["saves"][3]["state"] == "foreign"
    assert held["resume"] is None
    assert "is of run 'another'" in held["why_not"]
    assert "a resume is refused: " in call(trained, "list").output
    verified = read(trained, "verify", code=1)
    assert [one["of"] for one in verified["damaged"]] == ["step-00000004.a1.4"]
    assert call(trained, "prune", "--keep-last", "1").exit_code == 0
    assert saves(trained) == [3, 4]
    shutil.rmtree(save_of(trained, 4))
    later = trained.state / "step-00000003.a9.1"
    save_of(trained, 3).rename(later)
    write_sealed(later / "manifest.json", read_sealed(later / "manifest.json") | {"attempt": 9, "number": 1})
    assert "comes from the future" in read(trained, "list")["why_not"]


def test_a_run_that_never_saved_and_one_that_never_began(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "bare", name="bare", recipe_json="{}")
    for _ in range(2):
        held = read(run, "list")
        assert (held["saves"], held["versions"], held["resume"], held["why_not"]) == ([], [], None, "")
        assert "there is no save: a resume begins at step 0" in call(run, "list").output
        verified = call(run, "verify")
        assert verified.exit_code == 0
        assert "there is nothing to verify" in verified.output
        assert call(run, "prune", "--force").output == "nothing needs to go\n"
        assert "has no save 3; there are none" in problem(call(run, "show", "3"))
        assert "has no whole policy version" in problem(call(run, "export", "--hf", str(tmp_path / "hf")))
        assert "has no save 3" in problem(call(run, "export", "--hf", str(tmp_path / "hf"), "--step", "3"))
        run.new_attempt()


def test_show(trained: RunDirectory) -> None:
    both = read(trained, "show", "3")
    assert both["save"]["manifest"]["cursor"] == {"step": 3, "prompts": 12, "beyond": []}
    assert both["version"]["record"]["previous"] is None
    text = call(trained, "show", "step-00000002.a1.2").output
    for words in (
        "save step-00000002.a1.2",
        "by attempt 1, its save 2",
        "every prompt below 8 is trained",
        "8 rows are trained for good by this save (trained.npy)",
        "1 rank",
        "rng-0.pt",
        "loss -0.2, reward 1",
        "model.safetensors: ",
    ):
        assert words in text
    text = call(trained, "show", "v4").output
    assert "save" not in text
    assert "patch on version 3, " in text
    assert "20, bfloat16" in text
    assert set(read(trained, "show", "v4")) == {"version"}
    assert "has no policy version 9; nearest: 3 and 4" in problem(call(trained, "show", "v9"))
    assert problem(call(trained, "show", "7")).startswith("2 problems")
    (save_of(trained, 1) / "manifest.json").write_text("{")
    assert "is damaged" in call(trained, "show", "step-00000001.a1.1").output


def test_everything_whole_is_verified(trained: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    done = read(trained, "verify")
    assert done["clean"]
    assert (len(done["saves"]), done["versions"], done["partial"]) == (4, [0, 1, 2, 3, 4], [])
    assert done["resume"]["step"] == 4
    monkeypatch.setattr(ckpt_module, "SHOW_PROGRESS", 0)
    shown = call(trained, "verify")
    assert shown.output.count("ok  ") == 5
    assert "bytes" in shown.stderr
    assert read(trained, "verify", "--save", "2")["saves"] == ["step-00000002.a1.2"]
    one = read(trained, "verify", "--version", "2")
    assert (one["saves"], one["versions"]) == ([], [2])
    assert call(trained, "verify", "--all", "--save", "2").exit_code == 2


def test_a_flipped_byte_of_any_file_of_a_save_is_named_with_its_rank(trained: RunDirectory, flip: Flip) -> None:
    for file in sorted(save_of(trained, 4).iterdir()):
        data = file.read_bytes()
        flip(file)
        done = read(trained, "verify", code=1)
        assert [(one["of"], Path(one["file"])) for one in done["damaged"]] == [("step-00000004.a1.4", file)], file
        assert done["damaged"][0]["written_by"].startswith("rank 0")
        assert done["resume"]["step"] == 3
        file.write_bytes(data)
    assert read(trained, "verify")["clean"]
    flip(save_of(trained, 4) / "rng-0.pt")
    flip(save_of(trained, 3) / "__0_0.distcp")
    text = call(trained, "verify").output
    assert text.count("FAIL") == 2
    assert f"file {save_of(trained, 3) / '__0_0.distcp'}, written by rank 0 on " in text
    assert "a resume goes on from step 2, save step-00000002.a1.2 instead of step-00000004.a1.4" in text
    assert look(trained.state).damaged == (), "nothing is marked"


def test_a_flipped_byte_of_any_file_of_a_version_is_named_with_what_is_built_on_it(trained: RunDirectory, flip: Flip) -> None:
    for number, above in ((0, [1, 2]), (1, [2]), (3, [4]), (4, [])):
        for file in sorted((trained.weights / f"v{number:06d}").iterdir()):
            data = file.read_bytes()
            flip(file)
            done = read(trained, "verify", code=1)
            first, *others = done["damaged"]
            assert (first["of"], Path(first["file"])) == (f"version {number}", file)
            assert first["written_by"] == "rank 0"
            assert [one["of"] for one in others] == [f"version {n}" for n in above]
            assert all(f"is built on version {number}, which is damaged" in one["problem"] for one in others)
            file.write_bytes(data)
    assert read(trained, "verify")["clean"]


def test_a_version_that_was_sealed_wrong_does_not_come_out_as_it_says(trained: RunDirectory) -> None:
    path = trained.weights / "v000004" / "version.json"
    record = read_sealed(path)
    name = sorted(record["tensors"])[3]
    write_sealed(path, record | {"tensors": record["tensors"] | {name: "0" * 32}})
    found = read(trained, "verify", code=1)["damaged"]
    assert [one["of"] for one in found] == ["version 4"]
    assert f"tensor {name} comes out with digest " in found[0]["problem"]
    write_sealed(path, record | {"hash": "0" * 32})
    assert "its tensors have hash " in read(trained, "verify", code=1)["damaged"][0]["problem"]
    write_sealed(path, record | {"previous_hash": "0" * 32})
    assert "is a patch on version 3 of hash 0000" in read(trained, "verify", code=1)["damaged"][0]["problem"]


def test_unfinished_ones_are_told_and_are_no_error(trained: RunDirectory) -> None:
    (save_of(trained, 4) / "manifest.json").unlink()
    (trained.weights / "v000004" / "version.json").unlink()
    done = call(trained, "verify")
    assert done.exit_code == 0
    assert "part  save step-00000004.a1.4 (1.1 MB): unfinished, it is ignored" in done.output
    assert "part  weights/v000004 (" in done.output
    assert "a resume goes on from step 3" in done.output
    assert call(trained, "verify", "--save", "4").exit_code == 0


def test_a_save_that_a_trainer_found_damaged_stays_damaged(trained: RunDirectory) -> None:
    mark_damaged(trained.state, look(trained.state).committed[-1], "a disk lied")
    done = read(trained, "verify", code=1)
    assert "a disk lied" in done["damaged"][0]["problem"]
    assert done["resume"]["step"] == 3


def test_what_retention_removes_meanwhile_is_no_damage(trained: RunDirectory) -> None:
    held = look_at(trained)

    def remove(_: int) -> None:
        shutil.rmtree(save_of(trained, 1), ignore_errors=True)
        for number in (2, 1, 0):
            if (path := trained.weights / f"v{number:06d}").exists():
                discard(path)

    assert list(verify_save(trained.state, held.saves[0], remove)) == []
    assert list(verify_versions(trained.weights, held.versions, [0, 1, 2, 3, 4], remove)) == []
    assert [info.version for info in look_at(trained).versions] == [3, 4]


def test_prune_as_the_trainer_would(trained: RunDirectory) -> None:
    dry = read(trained, "prune", "--dry-run")
    assert (dry["saves"], dry["versions"]) == (["step-00000001.a1.1"], [2, 1, 0])
    assert dry["bytes"] > 1e6
    assert saves(trained) == [1, 2, 3, 4]
    done = call(trained, "prune")
    assert done.exit_code == 0
    assert "save step-00000001.a1.1 (committed, 1.1 MB)" in done.output
    assert saves(trained) == [2, 3, 4]
    assert folders(trained) == ["v000003", "v000004"]
    assert read(trained, "verify")["clean"]
    assert call(trained, "prune").output == "nothing needs to go\n"


def test_prune_by_other_rules_keeps_chains_and_the_best(trained: RunDirectory) -> None:
    (trained.weights / ".v000009.abcd").mkdir()
    done = read(trained, "prune", "--keep-last", "1", "--keep-every", "2", "--best", "-loss")
    assert saves(trained) == [2, 4]
    assert folders(trained) == ["v000000", "v000001", "v000002", "v000003", "v000004"], "2 is a patch on 1, and that on 0"
    assert [Path(path).name for path in done["unfinished"]] == [".v000009.abcd"]
    assert call(trained, "prune", "--keep-last", "1", "--best", "reward").exit_code == 0
    assert saves(trained) == [2, 4]
    assert folders(trained) == ["v000003", "v000004"]
    assert read_cursor(trained.state).step == 4
    assert "no save has that figure; nearest: reward" in problem(call(trained, "prune", "--best", "rewards"))


def test_older_saves_stay_where_the_newest_turns_out_damaged(trained: RunDirectory, flip: Flip) -> None:
    flip(save_of(trained, 4) / "__0_0.distcp")
    assert "nothing was removed, as the newest save is damaged" in problem(call(trained, "prune", "--keep-last", "1"))
    assert saves(trained) == [1, 2, 3, 4]


def test_a_run_that_lives_is_pruned_only_as_its_trainer_would(trained: RunDirectory) -> None:
    for path in (trained.latest().path / "done").iterdir():
        path.unlink()
    held = read(trained, "list")
    assert held["live"]
    said = problem(call(trained, "prune", "--keep-last", "1"))
    assert "may be going on, and its trainer keeps what would go: save step-00000002.a1.2, save step-00000003.a1.3" in said
    assert saves(trained) == [1, 2, 3, 4]
    # Nothing says which version is served, so any may be.
    assert read(trained, "prune", "--dry-run")["versions"] == []
    journal = Journal(trained.latest().journal / "inference.0.jsonl")
    journal.write("served", version=2)
    assert read(trained, "list")["versions"][1]["kept"] == ["version 2 is built on it"]
    assert read(trained, "list")["versions"][2]["kept"] == ["it is served"]
    journal.write("unserved", version=3)
    journal.write("served", version=4)
    journal.close()
    dry = read(trained, "prune", "--dry-run")
    assert (dry["saves"], dry["versions"], dry["unfinished"]) == (["step-00000001.a1.1"], [2, 1, 0], [])
    assert call(trained, "prune").exit_code == 0
    assert saves(trained) == [2, 3, 4]
    assert call(trained, "prune", "--keep-last", "1", "--force").exit_code == 0
    assert saves(trained) == [4]


def test_exit_codes_as_of_every_command(trained: RunDirectory, tmp_path: Path, flip: Flip) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "hpcrl.cli.main", "ckpt", *arguments], capture_output=True, text=True, check=False
        )

    missing = run("list", str(tmp_path / "nowhere"))
    assert (missing.returncode, missing.stderr.startswith("hpcrl: 1 problem")) == (2, True)
    flip(save_of(trained, 4) / "trained.npy")
    damaged = run("verify", str(trained.path))
    assert (damaged.returncode, "trained.npy" in damaged.stdout, damaged.stderr) == (1, True, "")


def test_torch_is_not_needed_to_look(trained: RunDirectory) -> None:
    code = (
        "import sys\nfrom click.testing import CliRunner\nfrom hpcrl.cli.main import cli\n"
        "for what in ('list', 'verify', 'prune'):\n"
        f"    done = CliRunner().invoke(cli, ['ckpt', what, {str(trained.path)!r}])\n"
        "    assert done.exit_code == 0, (done.output, done.exception)\n"
        f"done = CliRunner().invoke(cli, ['ckpt', 'export', {str(trained.path)!r}, '--hf', {str(trained.path / 'hf')!r}])\n"
        "assert done.exit_code == 0, (done.output, done.exception)\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
