"""Advantages, losses, normalisation and pacing: small pure functions, each with its source."""
