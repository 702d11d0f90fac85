"""What the checkpoint service has in a run: saves and policy versions, whether they are whole, and why they are kept."""
