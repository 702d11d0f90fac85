"""The standard feedback streams, which gate generation on training.

``policy``: the trainer announces {"version", "path", "hash"} once the weights of a version are published.
``served``: each engine announces {"version", "url"} once it runs a version.
"""

from __future__ import annotations

from hpcrl.recipe import FeedbackStream

POLICY = "policy"
SERVED = "served"


def feedback_streams() -> tuple[FeedbackStream, ...]:
    """Both, for a recipe."""
    return (FeedbackStream(name=POLICY), FeedbackStream(name=SERVED))
