"""The ledger: who holds which rows of which stream, and why; pure."""
