"""From a recipe file and overrides to a resolved recipe, to JSON and back. Standard library only."""
