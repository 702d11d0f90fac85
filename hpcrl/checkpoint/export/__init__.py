"""Weights out of a run as a plain Hugging Face folder: from a published version, or from a save of the trainer."""
