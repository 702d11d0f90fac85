import hypothesis
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.tracking.figures import StepFigures
from hpcrl.tracking.metrics import Point, clean, cut, flatten, parameters, points_of, points_of_outcomes, settings

JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1, max_size=5), inner, max_size=3),
    max_leaves=10,
)


def test_a_step_becomes_points_at_the_journals_time() -> None:
    record = {"t": 12.3456, "kind": "step", "step": 4, "reward": 0.5, "loss": None, "trained_tokens": 10, "step_s": 2.0}
    assert points_of("trainer.0", record) == [
        Point("train/reward", 0.5, 4, 12346),
        Point("train/trained_tokens", 10.0, 4, 12346),
        Point("train/step_s", 2.0, 4, 12346),
        Point("train/tokens_per_s", 5.0, 4, 12346),
    ]


def test_other_kinds() -> None:
    served = {"t": 1.0, "kind": "served", "version": 7, "load_s": 0.2, "hash": "ab"}
    assert points_of("inference.3", served) == [Point("weights/load_s", 0.2, 7, 1000)]
    assert points_of("judge.1", {"t": 1.0, "kind": "metrics", "step": 2, "a|b": 3}) == [Point("judge/a_b", 3.0, 2, 1000)]
    assert points_of("trainer.0", {"t": 1.0, "kind": "phase", "name": "step", "step": 2}) == []
    assert points_of("trainer.0", {"kind": "step", "step": 2, "reward": 1.0}) == []
    assert points_of("trainer.0", {"t": 1.0, "kind": "step", "reward": 1.0}) == []


def test_outcomes_are_shares() -> None:
    step = StepFigures(3, 1, 2.0, {}, {"right": 1, "wrong": 3})
    assert points_of_outcomes(step) == [Point("outcomes/right", 0.25, 3, 2000), Point("outcomes/wrong", 0.75, 3, 2000)]
    assert points_of_outcomes(StepFigures(3, 1, 2.0, {}, {"right": 0})) == []


def test_a_recipe_is_flat_and_within_the_limits() -> None:
    recipe = {"groups": {"trainer": {"lr": 1e-5, "note": "n" * 50, "tags": [], "list": [1, {"b": None}]}}, "odd|name": True}
    assert parameters(recipe, longest_name=30, longest_value=10) == {
        "groups.trainer.lr": "1e-05",
        "groups.trainer.note": "n" * 9 + "…",
        "groups.trainer.tags": "[]",
        "groups.trainer.list.0": "1",
        "groups.trainer.list.1.b": "null",
        "odd_name": "true",
    }


def test_of_type_tags_only_roles_are_settings() -> None:
    recipe = {"$type": "x:Recipe", "groups": {"a": {"$type": "x:RoleGroup", "role": {"$type": "m:Trainer", "lr": 1}}}}
    assert dict(settings(recipe)) == {"groups.a.role": "m:Trainer", "groups.a.role.lr": "1"}


@hypothesis.settings(max_examples=40)
@given(JSON, st.integers(1, 20), st.integers(1, 20))
def test_every_parameter_fits(recipe: object, name: int, value: int) -> None:
    for key, text in parameters(recipe, longest_name=name, longest_value=value).items():
        assert len(key) <= name
        assert len(text) <= value


@hypothesis.settings(max_examples=40)
@given(JSON)
def test_every_leaf_is_there_once(recipe: object) -> None:
    def leaves(value: object) -> int:
        items = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
        return 1 if not items else sum(leaves(item) for item in items)

    assert len(list(flatten(recipe))) == leaves(recipe)


def test_cut_and_clean() -> None:
    assert cut("abc", 3) == "abc"
    assert cut("abcd", 3) == "ab…"
    assert clean("a/b-c.d e_é|") == "a/b-c.d e___"
