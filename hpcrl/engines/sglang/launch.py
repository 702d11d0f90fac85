"""Run by the interpreter that SGLang is installed for, which may know nothing of hpcrl: standard library and SGLang alone.

``python launch.py ARGUMENTS`` is ``python -m sglang.launch_server ARGUMENTS --api-key KEY`` with the key from the environment,
so that no list of processes shows it, and with an end when the parent ends.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve until killed."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != parent:
        return
    # Not for the processes that the server starts.
    key = os.environ.pop("HPCRL_ENGINE_KEY", "")
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args

    run_server(prepare_server_args([*sys.argv[1:], *(["--api-key", key] if key else [])]))


if __name__ == "__main__":
    # A spawned process of the server imports this file again, and must not serve.
    main()
