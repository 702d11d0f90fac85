"""Reinforcement learning of language models on Slurm clusters, with the same recipe on a laptop."""

__version__ = "0.1.0"
