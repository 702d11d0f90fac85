"""Imported once by the process that the data plane's processes are forked from: a unit's imports alone take seconds."""

import gc

import hpcrl.dataplane.desk.process
import hpcrl.dataplane.transferqueue.storage  # noqa: F401

# What is there now is never garbage; forks that looked at it again and again would be slower than processes of a run.
gc.collect()
gc.freeze()
