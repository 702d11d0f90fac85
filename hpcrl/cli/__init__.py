"""The command line: thin, and lazy, so that asking for help loads nothing heavy."""
