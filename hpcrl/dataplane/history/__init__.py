"""The history of rows on disk: ``RUN/attempt_N/history/00001.events``, a file for each life of its writer and more as they
grow; a closed one is compressed to ``00001.events.gz``.

Every event has a number, which the attempt's ledger counts from 0: after a restart it makes the same events with the same
numbers again, and those that are on disk already are left out.
"""

FOLDER = "history"
