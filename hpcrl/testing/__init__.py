"""Real surroundings for tests and for learning; nothing that a run needs."""
