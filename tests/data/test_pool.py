from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from hpcrl.data.pool import GradingLimits, GradingPool
from hpcrl.data.rewards import Outcome

REWARD = """
import os, signal, sys, time
def reward(response, item):
    if response == "hang":
        while True: time.sleep(60)
    if response == "spin":
        while True: pass
    if response == "exit": os._exit(7)
    if response == "killed": os.kill(os.getpid(), signal.SIGKILL)
    if response == "sys.exit": sys.exit(1)
    if response == "raise": raise KeyError("lost")
    if response == "pid": return os.getpid()
    return float(response)
"""


@pytest.fixture(scope="module")
def reward(tmp_path_factory):
    path = tmp_path_factory.mktemp("reward") / "mine.py"
    path.write_text(REWARD)
    return f"{path}:reward"


@pytest.mark.slow
def test_every_way_to_fail_costs_only_its_own_sample(reward):
    responses = ["1", "hang", "0", "exit", "1", "killed", "raise", "spin", "sys.exit", "0.5", "1"]
    with GradingPool(reward, GradingLimits(workers=2, sample_s=0.5)) as pool:
        grades = pool.grade(responses, [{}] * len(responses))
    assert [grade.outcome for grade in grades] == [
        Outcome.RIGHT,
        Outcome.TIMEOUT,
        Outcome.WRONG,
        Outcome.EXCEPTION,
        Outcome.RIGHT,
        Outcome.EXCEPTION,
        Outcome.EXCEPTION,
        Outcome.TIMEOUT,
        Outcome.EXCEPTION,
        Outcome.WRONG,
        Outcome.RIGHT,
    ]
    assert grades[9].reward == 0.5
    assert "exit code 7" in grades[3].error
    assert "KeyError: 'lost'" in grades[6].error
    assert "0.5 s" in grades[1].error


@pytest.mark.slow
def test_workers_are_replaced_and_none_is_left(reward):
    with GradingPool(reward, GradingLimits(workers=1, samples_per_worker=2)) as pool:
        pids = [int(grade.reward) for grade in pool.grade(["pid"] * 6, [{}] * 6)]
        pool.submit("hang", {})
    assert len(set(pids)) == 3
    assert not any(psutil.pid_exists(pid) for pid in pids)


OWNER = """
import sys
from hpcrl.data.pool import GradingLimits, GradingPool
if __name__ == "__main__":
    pool = GradingPool(sys.argv[1], GradingLimits(sample_s=600))
    print(int(pool.grade(["pid"], [{}])[0].reward), flush=True)
    pool.grade(["hang"], [{}])
"""


@pytest.mark.slow
def test_a_hanging_worker_ends_with_its_owner_even_when_that_is_killed(reward, tmp_path):
    script = tmp_path / "owner.py"
    script.write_text(OWNER)
    with subprocess.Popen([sys.executable, str(script), reward], stdout=subprocess.PIPE, text=True) as owner:
        worker = psutil.Process(int(owner.stdout.readline()))
        server = worker.parent()
        owner.kill()
    gone, alive = psutil.wait_procs([worker, server], timeout=20)
    assert not alive
    assert len(gone) == 2


@pytest.mark.slow
def test_a_function_that_cannot_be_imported_is_an_exception_of_every_sample():
    with GradingPool("no_such_module_x:f", GradingLimits()) as pool:
        grades = pool.grade(["1", "2"], [{}, {}])
    assert [grade.outcome for grade in grades] == [Outcome.EXCEPTION] * 2
    assert "no_such_module_x" in grades[0].error


# What a model's sample may hold, by what becomes of it; the right answer is 42.
HOSTILE = {
    r"\boxed{9^{9^{9^{9^{9}}}}}": Outcome.TIMEOUT,
    r"\boxed{1000000000!}": Outcome.TIMEOUT,
    r"\boxed{" + "{" * 5000 + "1" + "}" * 5000 + "}": Outcome.UNPARSEABLE,
    "(" * 4000: Outcome.UNPARSEABLE,
    "$" * 100_000: Outcome.UNPARSEABLE,
    "x" * 1_000_000: Outcome.UNPARSEABLE,
    "1" * 1_000_000: Outcome.WRONG,
    r"\boxed{" + "1" * 1_000_000 + "}": Outcome.UNPARSEABLE,
    r"I think \boxed{41}, no: \boxed{42}" + " " * 1_000_000: Outcome.RIGHT,
    "\x00\ud83d \\boxed{": Outcome.UNPARSEABLE,
}


@pytest.mark.slow
def test_hostile_answers_cost_a_bounded_time_and_nobody_elses_grade():
    item = {"question": "", "answer": "42", "metadata": {}, "source": "test:1"}
    answers = [text for hostile in HOSTILE for text in (hostile, r"\boxed{42}")]
    with GradingPool("hpcrl.data.graders:math_verify", GradingLimits(workers=2, sample_s=8, memory_gib=2)) as pool:
        # The first import takes long where nothing is in the file cache.
        pool.grade(["$42$"] * 2, [item] * 2)
        grades = pool.grade(answers, [item] * len(answers))
    found = {hostile: grade.outcome for hostile, grade in zip(answers[::2], grades[::2], strict=True)}
    short = {hostile[:40]: outcome.name for hostile, outcome in HOSTILE.items()}
    assert {hostile[:40]: outcome.name for hostile, outcome in found.items()} == short
    assert {grade.outcome for grade in grades[1::2]} == {Outcome.RIGHT}


EATER = """
def eat(response, item):
    return float(len(bytearray(int(response) << 20)) > 0)
"""


@pytest.mark.slow
def test_a_function_that_takes_too_much_memory_fails_alone(tmp_path):
    path = tmp_path / "eater.py"
    path.write_text(EATER)
    with GradingPool(f"{path}:eat", GradingLimits(memory_gib=1)) as pool:
        small, large, again = pool.grade(["10", "4096", "10"], [{}] * 3)
    assert (small.outcome, again.outcome) == (Outcome.RIGHT, Outcome.RIGHT)
    assert large.outcome == Outcome.EXCEPTION
    assert "MemoryError" in large.error
