"""The desk: one process in which the ledger lives, and the sockets over which roles ask it."""
