"""Run by the interpreter that SGLang is installed for, which may know nothing of hpcrl: standard library and SGLang alone.

``python launch.py ARGUMENTS`` is ``python -m sglang.launch_server ARGUMENTS --api-key KEY`` with the key from the environment,
so that neither a list of processes nor a log shows it, and with an end when the parent ends.
"""

import ctypes
import logging
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve until killed."""
    parent = os.getppid()
    # SIGTERM would have it finish its requests first, for nobody. Its own processes end with it in the same way.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        return
    # What started this may have held signals back.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # Not for the processes that the server starts.
    key = os.environ.pop("HPCRL_ENGINE_KEY", "")
    if key:
        _keep_from_logs(key)
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    try:
        from sglang.srt.plugins import load_plugins
    except ImportError:
        pass
    else:
        load_plugins()
    try:
        run_server(prepare_server_args([*sys.argv[1:], *(["--api-key", key] if key else [])]))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


def _keep_from_logs(key: str) -> None:
    """SGLang logs all of its settings when it starts."""
    make = logging.getLogRecordFactory()

    def without(*args: object, **more: object) -> logging.LogRecord:
        record = make(*args, **more)
        text = record.getMessage()
        if key in text:
            record.msg, record.args = text.replace(key, "(the run's key)"), ()
        return record

    logging.setLogRecordFactory(without)


if __name__ == "__main__":
    # A spawned process of the server imports this file again, and must not serve.
    main()
