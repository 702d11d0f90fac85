"""What ``hpcrl doctor`` checks: one finding a line, each with what to do where something is wrong."""
