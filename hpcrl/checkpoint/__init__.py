"""Weights that others load, and state that the trainer resumes from. Both are there whole or not at all."""
