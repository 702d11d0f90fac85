"""Proves from the history of a run's rows that nothing was lost or trained twice; pure."""
