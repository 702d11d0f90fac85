import pytest

from hpcrl.engines.titan.schedule import learning_rate
from hpcrl.engines.titan.settings import TrainerSettings


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_every_step_learns_and_the_peak_follows_warm_up(schedule):
    settings = TrainerSettings(model="m", lr=1.0, lr_schedule=schedule, warmup_steps=3, total_steps=10)
    rates = [learning_rate(step, settings) for step in range(10)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert all(0 < rate <= 1 for rate in rates)
    assert rates[3:] == sorted(rates[3:], reverse=True)
    assert learning_rate(10, settings) == (1.0 if schedule == "constant" else 0.0)


def test_settings_name_everything_that_is_wrong():
    settings = TrainerSettings(model="m", lr=0.0, minibatches=0, lr_schedule="linear", compute_dtype="float16", clip_low=-1)
    text = "\n".join(settings.problems())
    for part in ("lr must be above 0", "minibatches must be at least 1", "needs total_steps", "compute_dtype", "clip_low"):
        assert part in text
    assert len(settings.problems()) == 5
    assert TrainerSettings(model="m").problems() == []
