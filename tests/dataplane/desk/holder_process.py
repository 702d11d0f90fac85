"""A process that takes turns, to be stopped and killed: ``holder_process.py WHAT`` with the pickled ``WHAT`` in base64.

Says on its standard output what happens: ``has EPOCH``, ``called``, ``let go`` or ``stale``; and begins anew after each of the
last two.
"""

from __future__ import annotations

import base64
import pickle
import sys

from hpcrl.dataplane.connect import connect
from hpcrl.dataplane.interface import TurnOver


def main() -> None:
    options = pickle.loads(base64.b64decode(sys.argv[1]))
    ring = options.pop("ring")
    seat = connect(**options).seat(ring)
    while True:
        seat.ask()
        while not (turn := seat.wait(60)).settled:
            pass
        say(f"has {turn.epoch}")
        try:
            while not seat.is_called(turn.epoch, 60):
                pass
            say("called")
            seat.leave(turn.epoch, freed=1, left=0, took_s=0.0, news="")
            say("let go")
        except TurnOver:
            say("stale")


def say(what: str) -> None:
    print(what, flush=True)


if __name__ == "__main__":
    main()
