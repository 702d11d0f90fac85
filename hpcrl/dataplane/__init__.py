"""Rows between roles: one interface, TransferQueue or memory behind it."""
