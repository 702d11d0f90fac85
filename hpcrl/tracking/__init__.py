"""What a run reports of itself: its own journal first, everything else from it."""
