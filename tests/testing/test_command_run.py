from __future__ import annotations

import pytest

from hpcrl.testing.command_run import CommandRun


@pytest.mark.parametrize(("sampled", "away"), [([], 5.0), ([9.0], 5.0), ([12.0, 13.0], 2.0), ([16.0], 5.0)])
def test_a_reward_is_back_when_it_has_graded_what_was_there(tmp_path, sampled, away):
    held = CommandRun(None, tmp_path)
    held._fresh = [("rollout.0", {"kind": "sampled", "t": at}) for at in sampled]
    assert held._away("reward.0", 10.0) is None
    held._fresh.append(("reward.0", {"kind": "outcomes", "t": 15.0}))
    assert held._away("reward.0", 10.0) == pytest.approx(away)
