"""A real Slurm cluster on one machine: real daemons, virtual nodes, GPUs that exist only for the scheduler."""
