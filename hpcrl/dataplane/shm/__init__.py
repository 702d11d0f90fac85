"""Payload in shared memory: segments that one process of a node writes and every other one maps."""
