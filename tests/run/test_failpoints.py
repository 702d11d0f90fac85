import errno
import os
import signal
import subprocess
import sys
import time

import pytest

from hpcrl.run.failpoints import NAMES, arm, armed, reach


def test_nothing_happens_unless_armed():
    for name in NAMES:
        reach(name, "somewhere", 1 << 30)


def test_an_unknown_name_is_refused_wherever_it_stands():
    with pytest.raises(ValueError, match=r"'disk.wriet' is not in hpcrl.run.failpoints"):
        reach("disk.wriet")
    with pytest.raises(ValueError, match=r"no failpoint 'disk\.wriet'"):
        arm("disk.wriet=kill")


@pytest.mark.parametrize("action", ["", "killl", "errno:ENOTHING", "errno", "sleep:long", "throttle:0", "late"])
def test_an_unknown_action_is_refused(action):
    with pytest.raises(ValueError, match=r"action|=$") if action else pytest.raises(ValueError, match="times"):
        arm(f"disk.open={action}" if action else "disk.open@0")


def test_it_acts_the_nth_time_only_and_with_plus_from_then_on():
    def hits(text):
        with armed(text):
            seen = []
            for turn in range(4):
                try:
                    reach("disk.write", "f")
                except OSError as error:
                    seen.append((turn, error.errno, error.filename))
            return seen

    assert hits("disk.write@2=errno:ENOSPC") == [(1, errno.ENOSPC, "f")]
    assert [turn for turn, *_ in hits("disk.write@3+=errno:ENOSPC")] == [2, 3]
    assert [turn for turn, *_ in hits("disk.open=kill,disk.write=errno:EIO")] == [0]


def test_a_text_limits_it_to_paths_that_have_it():
    with armed("disk.write~/state/=errno:EDQUOT"):
        reach("disk.write", "run/weights/f")
        with pytest.raises(OSError, match="quota"):
            reach("disk.write", "run/state/f")


def test_a_late_file_is_seen_after_a_while(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("hpcrl.run.failpoints.time.monotonic", lambda: clock[0])
    with armed("disk.open=late:5"):
        for clock[0] in (100.0, 104.9):
            with pytest.raises(FileNotFoundError):
                reach("disk.open", "f")
        clock[0] = 105.1
        reach("disk.open", "f")
        with pytest.raises(FileNotFoundError):
            reach("disk.open", "another")


def test_a_throttled_disk_takes_its_time():
    with armed("disk.write@1+=throttle:1000"):
        began = time.monotonic()
        reach("disk.write", "f", 50)
        assert time.monotonic() - began >= 0.05


@pytest.mark.parametrize("action", ["", "=kill", "=kill-group"])
def test_the_environment_has_a_process_killed(action):
    code = "from hpcrl.run.failpoints import reach\nreach('disk.open')\nprint('alive', flush=True)\nreach('disk.open')"
    environment = {**os.environ, "HPCRL_FAILPOINT": f"disk.open@2{action}"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, start_new_session=True
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "alive\n")
