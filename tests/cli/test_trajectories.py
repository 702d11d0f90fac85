import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from hpcrl.cli.main import cli
from hpcrl.dataplane.interface import Batch, Block
from hpcrl.dataplane.snapshot.rows import open_rows
from hpcrl.dataplane.trajectories import agent
from hpcrl.dataplane.trajectories.keeper import _saved
from hpcrl.dataplane.trajectories.layout import STREAM, folder_of
from hpcrl.dataplane.trajectories.request import Done, Request
from hpcrl.run.directory import Attempt, RunDirectory
from hpcrl.run.errors import CheckFailed

RECIPE = {"groups": {"trainer": {"role": {"$type": "hpcrl.roles.trainer:Trainer", "model": "nowhere"}}}}
ANSWERS = ["\n  It is 42.\nSurely.", "[bold]no\x1b[2Jidea", "", "ÄPFEL und Birnen"]


def group(prompt: int, step: int, *, samples: int = 4) -> Batch:
    """Samples whose answers are ANSWERS, made by versions step - 1 and step."""
    ids = np.arange(samples, dtype=np.int64) + 1000 * prompt
    lengths = [3, 2, 1, 5][:samples]
    columns = {
        "prompt_number": np.full(samples, prompt, np.int64),
        "sample_index": np.arange(samples, dtype=np.int32),
        "reward": np.array([1, 0, 0.25, 0.5][:samples], np.float32),
        "outcome": np.array([0, 1, 2, 9][:samples], np.int8),
        "prompt_ids": [np.array([5, 6], np.int32)] * samples,
        "response_ids": [np.arange(length, dtype=np.int32) for length in lengths],
        "rollout_logprobs": [np.linspace(-1, 0, length, dtype=np.float32) for length in lengths],
        "versions": [np.minimum(np.arange(length) + step - 1, step).astype(np.int32) for length in lengths],
        "response": ANSWERS[:samples],
        "item": [json.dumps({"question": f'what is "{prompt}"?', "answer": "42", "metadata": {}, "source": "q.jsonl:7"})]
        * samples,
        "finish": ["stop"] * samples,
    }
    return Batch("samples", columns, (Block(ids),))


def leave(run: RunDirectory, attempt: Attempt, step: int, *prompts: int, after: int = 0, run_id: str = "") -> Path:
    """A file of one step, as the trainer's process writes it."""
    folder = folder_of(attempt)
    asked = Request(
        folder=str(folder), run_id=run_id or run.run_id, attempt=attempt.number, after=after, first_step=step, last_step=step
    )
    blocks = [_saved(step, group(prompt, step), 4, [1.0, -1.0, 0.0, float("nan")]) for prompt in prompts]
    assert isinstance(agent.answer(asked, blocks), Done)
    return folder / f"step-{step:08d}.h5"


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Steps 1, 2 and 3, of two prompts each."""
    run = RunDirectory.create(tmp_path / "a run, 東京", name="t", recipe_json=json.dumps(RECIPE))
    attempt = run.new_attempt()
    for step in (1, 2, 3):
        leave(run, attempt, step, 2 * step, 2 * step + 1)
    return run


def call(run: RunDirectory, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["trajectories", str(run.path), *arguments])


def rows(run: RunDirectory, *arguments: str) -> list[str]:
    done = call(run, "--jsonl", *arguments)
    assert done.exit_code == 0, done.output
    return [json.loads(line)["handle"] for line in done.stdout.splitlines()]


def problem(done: Result) -> str:
    assert isinstance(done.exception, CheckFailed), done.output
    return str(done.exception)


def test_a_table_of_the_newest(run: RunDirectory) -> None:
    done = call(run)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["step", "row", "reward", "outcome", "tokens", "versions", "answer"]
    assert len(lines) == 22
    assert lines[-1] == "20 rows of 24; --limit shows more; --show PROMPT.SAMPLE shows one"
    last = lines[-5:-1]
    assert last[0].split() == ["3", "7.0", "1", "right", "3", "2-3", "It", "is", "42."]
    # Nothing in an answer commands the terminal, or is taken for markup.
    assert last[1].split() == ["3", "7.1", "0", "wrong", "2", "2-3", r"[bold]no\x1b[2Jidea"]
    assert last[2].split() == ["3", "7.2", "0.25", "unparseable", "1", "2"]
    assert last[3].split()[:5] == ["3", "7.3", "0.5", "outcome", "9"]
    assert call(run, "--limit", "0").stdout.splitlines()[-1].startswith("24 rows; ")


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (("--step", "2"), ["4.0", "4.1", "4.2", "4.3", "5.0", "5.1", "5.2", "5.3"]),
        (("--step", ":2", "--reward", ">=0.5", "--prompt", "3"), ["3.0", "3.3"]),
        (("--version", "1:2", "--reward", "=1"), ["4.0", "5.0"]),
        (("--version", "0"), ["2.2", "3.2"]),
        (("--grep", "äpfel", "--step", "1"), ["2.3", "3.3"]),
        (("--grep", 'IS "5"'), ["5.0", "5.1", "5.2", "5.3"]),
        (("--grep", "nowhere"), []),
        (("--sort", "length", "--limit", "2"), ["2.3", "3.3"]),
        (("--sort", "reward", "--reverse", "--limit", "3"), ["2.1", "3.1", "4.1"]),
        (("--sort", "step", "--limit", "1"), ["6.0"]),
        (("--limit", "1"), ["7.3"]),
        (("--reverse", "--limit", "2"), ["7.3", "7.2"]),
    ],
)
def test_filters(run: RunDirectory, options: tuple[str, ...], found: list[str]) -> None:
    assert rows(run, *options) == found


def test_bad_filters_are_told_together(run: RunDirectory) -> None:
    said = problem(call(run, "--step", "a", "--reward", "!3", "--version", "5:1"))
    assert "--step: 'a'" in said
    assert "--reward: '!3' is neither a number" in said
    assert "--version: '5:1' is empty" in said


def test_one_row_in_full(run: RunDirectory) -> None:
    said = call(run, "--show", "5.0", "--tokens").output
    assert "row 5.0  id 5000" in said
    assert "step 2, prompt 5, sample 0" in said
    assert "reward 1 (right), advantage 1, ended by stop" in said
    assert "2 + 3 tokens, made by policy versions 1-2" in said
    assert 'what is "5"?' in said
    assert "  It is 42.\nSurely." in said
    assert "-- reference\n42\nfrom q.jsonl:7" in said
    table = [line.split() for line in said.partition("-- tokens\n")[2].splitlines()]
    assert table[1:] == [["0", "0", "1", "-1.0000"], ["1", "1", "2", "-0.5000"], ["2", "2", "2", "0.0000"]]
    assert call(run, "--show", "5000").output == call(run, "--show", "5.0").output
    assert "no such row was kept" in problem(call(run, "--show", "5.9"))
    assert "a row is PROMPT.SAMPLE" in problem(call(run, "--show", "five"))


def test_prompts_are_decoded_where_the_run_has_a_tokenizer(run: RunDirectory, tiny_model: Path) -> None:
    (run.weights / "v000003").mkdir()
    (run.weights / "v000003" / "tokenizer.json").write_bytes((tiny_model / "tokenizer.json").read_bytes())
    said = call(run, "--show", "5.0", "--tokens").output
    assert '-- prompt\n"#\n' in said
    assert "'<|im_start|>'" in said


def test_json(run: RunDirectory) -> None:
    made = json.loads(call(run, "--json", "--prompt", "6", "--tokens").stdout)
    assert made["run_id"] == run.run_id
    first, *_, last = made["rows"]
    assert (first["row"], first["step"], first["outcome"], first["versions"], first["tokens"]) == (6000, 3, "right", [2, 3], 3)
    assert first["item"]["question"] == 'what is "6"?'
    assert first["by_token"]["versions"] == [2, 3, 3]
    assert last["advantage"] == "nan"
    assert last["response"] == ANSWERS[3]


def test_files_by_the_exporter_of_the_queue(run: RunDirectory, tmp_path: Path) -> None:
    done = call(run, "--step", "2:3", "--reward", "0:0.3", "--out", str(tmp_path / "some.h5"))
    assert done.exit_code == 0, done.output
    assert "some.h5: 8 rows, " in done.output
    with open_rows(tmp_path / "some.h5") as held:
        table = held.tables[STREAM.name]
        assert table.row_ids.tolist() == [4001, 4002, 5001, 5002, 6001, 6002, 7001, 7002]
        assert table.read("response", [0]) == [ANSWERS[1]]
        assert table.where(prompt=5).tolist() == [2, 3]
        assert held.about["run_id"] == run.run_id
    assert call(run, "--sort", "length", "--limit", "3", "--out", str(tmp_path / "long.jsonl")).exit_code == 0
    lines = [json.loads(line) for line in (tmp_path / "long.jsonl").read_text().splitlines()]
    assert [line["row"] for line in lines] == [2003, 3003, 4003]
    assert lines[0]["columns"]["response"] == ANSWERS[3]
    assert "some.h5 is there already" in problem(call(run, "--out", str(tmp_path / "some.h5")))
    assert "must end in .h5" in problem(call(run, "--out", str(tmp_path / "some.csv")))


def test_damaged_foreign_and_unfinished_files_are_skipped_by_name(run: RunDirectory) -> None:
    attempt = run.latest()
    torn = folder_of(attempt) / "step-00000002.h5"
    torn.write_bytes(torn.read_bytes()[:5000])
    other = leave(run, attempt, 4, 8, run_id="another")
    (folder_of(attempt) / ".step-00000005.h5.1234").write_bytes(b"half")
    (folder_of(attempt) / "step-00000006.h5").write_bytes(b"")
    done = call(run, "--jsonl", "--reward", "1")
    assert done.exit_code == 0
    assert [json.loads(line)["handle"] for line in done.stdout.splitlines()] == ["2.0", "3.0", "6.0", "7.0"]
    assert len(done.stderr.splitlines()) == 3
    assert f"hpcrl: {torn} is skipped: {torn} cannot be read or is damaged" in done.stderr
    assert f"hpcrl: {other} is skipped: it is of run 'another', not of '{run.run_id}'" in done.stderr
    assert "step-00000006.h5 is skipped" in done.stderr


def test_a_later_attempt_replaces_what_was_trained_again(run: RunDirectory) -> None:
    leave(run, run.new_attempt(), 2, 9, after=1)
    assert rows(run, "--reward", "1") == ["2.0", "3.0", "9.0"]


def test_nothing_kept_and_nothing_yet(tmp_path: Path) -> None:
    bare = RunDirectory.create(tmp_path / "bare", name="t", recipe_json=json.dumps(RECIPE))
    assert "has no trajectories yet" in problem(call(bare))
    bare.new_attempt()
    assert "has no trajectories yet" in problem(call(bare))
    recipe = json.loads(json.dumps(RECIPE))
    recipe["groups"]["trainer"]["role"]["trajectories"] = 0
    none = RunDirectory.create(tmp_path / "none", name="t", recipe_json=json.dumps(recipe))
    assert "its trainer's field `trajectories` is 0" in problem(call(none))
