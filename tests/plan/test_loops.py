from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from hpcrl.plan.loops import Edge, find_loops, loop_problems, loop_text
from hpcrl.recipe import Column, FeedbackStream, Reads, Recipe, Role, RoleGroup, Schedule, Stream, Writes


@dataclass(frozen=True, kw_only=True)
class FakeRole(Role):
    r: tuple[str, ...] = ()
    w: tuple[str, ...] = ()
    hears: tuple[str, ...] = ()
    tells: tuple[str, ...] = ()

    def reads(self):
        return tuple(Reads(stream="samples", columns=(column,)) for column in self.r)

    def writes(self):
        return tuple(Writes(stream="samples", columns=(column,)) for column in self.w)

    def listens(self):
        return self.hears

    def announces(self):
        return self.tells


def recipe(**groups: RoleGroup) -> Recipe:
    return Recipe(
        name="x",
        groups=groups,
        streams=(
            Stream(name="samples", columns=(Column(name="response", dtype="int32"), Column(name="reward", dtype="int32"))),
        ),
        feedback=(FeedbackStream(name="gate"),),
        schedule=Schedule(steps=1, prompts_per_step=1, samples_per_prompt=1),
    )


def test_the_whole_loop_is_printed_with_stream_names():
    (problem,) = loop_problems(
        recipe(
            rollout=RoleGroup(role=FakeRole(w=("response",), r=("reward",))),
            reward=RoleGroup(role=FakeRole(r=("response",), w=("reward",))),
        )
    )
    assert "reward -(samples: reward)-> rollout -(samples: response)-> reward" in problem


def test_start_dependencies_count():
    (problem,) = loop_problems(
        recipe(
            rollout=RoleGroup(role=FakeRole(w=("response",)), after=("trainer",)),
            trainer=RoleGroup(role=FakeRole(r=("response",))),
        )
    )
    assert "rollout -(samples: response)-> trainer -(after)-> rollout" in problem
    (problem,) = loop_problems(recipe(a=RoleGroup(role=FakeRole(), after=("a",))))
    assert "a -(after)-> a" in problem


def test_a_group_that_reads_what_it_fills_waits_for_itself():
    (problem,) = loop_problems(recipe(a=RoleGroup(role=FakeRole(r=("reward",), w=("reward",)))))
    assert "a -(samples: reward)-> a" in problem


def test_feedback_never_counts():
    assert not loop_problems(
        recipe(
            rollout=RoleGroup(role=FakeRole(w=("response",), hears=("gate",))),
            trainer=RoleGroup(role=FakeRole(r=("response",), tells=("gate",))),
        )
    )


def edges(*pairs: str) -> list[Edge]:
    return [Edge(pair[0], pair[1], "s") for pair in pairs]


def test_each_loop_is_reported_once_the_shortest_first():
    loops = find_loops(edges("ab", "bc", "ca", "xy", "yx", "cd"))
    assert [loop_text(loop) for loop in loops] == ["x -(s)-> y -(s)-> x", "a -(s)-> b -(s)-> c -(s)-> a"]
    # The long way round shares edges with the short one.
    assert [loop_text(loop) for loop in find_loops(edges("ab", "ba", "bc", "ca"))] == ["a -(s)-> b -(s)-> a"]


def has_loop(found: list[Edge]) -> bool:
    left = list(found)
    while True:
        sources = {edge.source for edge in left}
        kept = [edge for edge in left if edge.target in sources]
        if len(kept) == len(left):
            return bool(left)
        left = kept


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from("abcdef")).map("".join), max_size=14, unique=True))
def test_loops_are_found_exactly_where_there_are_some(pairs):
    given_edges = edges(*pairs)
    loops = find_loops(given_edges)
    assert bool(loops) == has_loop(given_edges)
    for loop in loops:
        assert all(a.target == b.source for a, b in zip(loop, (*loop[1:], loop[0]), strict=True))
        assert len({edge.source for edge in loop}) == len(loop)
    used = [edge for loop in loops for edge in loop]
    assert len(used) == len(set(used))
    assert not has_loop([edge for edge in given_edges if edge not in used])
    assert find_loops(given_edges[::-1]) == loops
