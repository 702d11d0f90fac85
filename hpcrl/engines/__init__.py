"""Models: what trains and what generates. Engines know nothing of queues or Slurm."""
