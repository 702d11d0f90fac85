from __future__ import annotations

import math

import pytest

from hpcrl.data.graders import countdown, exact_number, math_verify, reasoning_gym_score
from hpcrl.data.rewards import Outcome, Score, Unparseable, grade, load_reward
from hpcrl.run.errors import CheckFailed


def item(answer, **metadata):
    return {"question": "", "answer": answer, "metadata": metadata, "source": "test:1"}


@pytest.mark.parametrize(
    ("response", "answer", "reward"),
    [
        ("The answer is 7.", "7", 1.0),
        ("7 or 8", "7", 0.0),
        ("-4", "-4", 1.0),
        ("it costs 1,234.50", "1234.5", 1.0),
        ("3 + 4 = 7", "07", 1.0),
        ("seven 6", "7", 0.0),
    ],
)
def test_exact_number(response, answer, reward):
    assert exact_number(response, item(answer)) == reward


def test_exact_number_without_a_number_is_unparseable():
    with pytest.raises(Unparseable):
        exact_number("no idea", item("7"))


@pytest.mark.parametrize(
    ("response", "answer", "reward"),
    [
        (r"so \boxed{\frac{1}{2}}", "0.5", 1.0),
        ("The answer is $42$.", "42", 1.0),
        ("The answer is $41$.", "42", 0.0),
    ],
)
def test_math_verify(response, answer, reward):
    assert math_verify(response, item(answer)) == reward


def test_math_verify_tells_a_response_without_an_expression_from_a_wrong_one():
    with pytest.raises(Unparseable):
        math_verify("I do not know", item("42"))


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ("4 + 1 * 6", 1.0),
        (" (6 * 1) + 4 = 10", 1.0),
        ("10 = 4 + 1 * 6\nas asked", 1.0),
        ("6/(1-4)", 0.1),
        ("4 + 6", 0.0),
        ("10", 0.0),
        ("4 + 1 * 6 + 6", 0.0),
        ("6 / (1 - 1) + 4", 0.0),
        ("4 / 0 + 1 * 6", 0.0),
    ],
)
def test_countdown(response, reward):
    assert countdown(response, {"metadata": {"numbers": [6, 1, 4], "target": 10}}) == reward


@pytest.mark.parametrize(
    "response",
    ["", "ten", "4 ** 9 ** 9", "so\n4 + 1 * 6", "__import__('os')", "4.0 + 1 * 6", "-6 + 4", "True + 4", "(" * 9999],
)
def test_countdown_takes_nothing_but_an_expression(response):
    with pytest.raises(Unparseable):
        countdown(response, {"metadata": {"numbers": [6, 1, 4], "target": 10}})


def test_reasoning_gym_scores_with_the_tasks_own_scorer():
    held = item("3", question="1 + 2 =", source_dataset="chain_sum")
    assert reasoning_gym_score("3", held) == 1.0
    assert reasoning_gym_score("4", held) < 1.0
    with pytest.raises(Unparseable):
        reasoning_gym_score("  ", held)


def raises(response, item):
    raise RuntimeError("broken inside")


def exits(response, item):
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("function", "outcome", "reward"),
    [
        (lambda r, i: 1, Outcome.RIGHT, 1.0),
        (lambda r, i: 0.4, Outcome.WRONG, 0.4),
        (lambda r, i: Score(reward=0.2, right=True), Outcome.RIGHT, 0.2),
        (lambda r, i: math.nan, Outcome.EXCEPTION, 0.0),
        (lambda r, i: "high", Outcome.EXCEPTION, 0.0),
        (raises, Outcome.EXCEPTION, 0.0),
        (exits, Outcome.EXCEPTION, 0.0),
    ],
)
def test_outcomes(function, outcome, reward):
    given = grade(function, "", item(""), right_from=0.9)
    assert (given.outcome, given.reward) == (outcome, reward)
    assert bool(given.error) == (outcome is Outcome.EXCEPTION)


def test_an_exception_keeps_its_traceback():
    assert "RuntimeError: broken inside" in grade(raises, "", item(""), right_from=1).error


def test_a_function_is_found_in_a_module_and_in_a_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def reward(response, item):\n    return 0.25\n")
    assert load_reward("hpcrl.data.graders:exact_number") is exact_number
    assert load_reward(f"{file}:reward")("", {}) == 0.25


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nocolon", "neither 'module:function'"),
        ("no_such_module_x:f", "No module named 'no_such_module_x'"),
        ("hpcrl.data.graders:exact", "no function 'exact'; it has"),
        ("nowhere/mine.py:f", "does not exist"),
    ],
)
def test_a_name_that_leads_nowhere(name, said):
    with pytest.raises(CheckFailed, match="reward") as caught:
        load_reward(name)
    assert said in str(caught.value)


def test_a_file_that_fails_at_import_names_the_line(tmp_path):
    file = tmp_path / "bad.py"
    file.write_text("x = 1\nraise OSError('needs a key')\n")
    with pytest.raises(CheckFailed, match="needs a key") as caught:
        load_reward(f"{file}:f")
    assert f"{file}:2" in str(caught.value)
