"""The standard feedback streams, which gate generation on training.

``policy``: the trainer announces {"version", "path", "hash"} once the weights of a version are published, and with it its own
    group and number of ranks ("trainer", "ranks") and who is broadcast to ("members"); see :mod:`hpcrl.roles.sending`.
``served``: each engine announces {"version", "url"} once it runs a version, and version -1 while it runs none.
"""

from __future__ import annotations

from hpcrl.recipe import FeedbackStream

POLICY = "policy"
SERVED = "served"
# In place of a version: older than any.
NOT_SERVING = -1


def feedback_streams() -> tuple[FeedbackStream, ...]:
    """Both, for a recipe."""
    return (FeedbackStream(name=POLICY), FeedbackStream(name=SERVED))
