"""Pure: from a recipe and an allocation to what runs where, with every problem found before anything starts."""
