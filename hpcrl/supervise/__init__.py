"""Keeping a run alive: the ignitor of each slot, and the role processes that it starts and watches."""
