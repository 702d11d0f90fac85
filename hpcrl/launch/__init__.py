"""From a plan to running processes: on this machine, in this process, or through Slurm."""
