"""Where prompts come from, in which order, and how answers are graded."""
