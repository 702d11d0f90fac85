"""The built-in roles: one file each, with its settings, its contract with the streams and its loop."""
