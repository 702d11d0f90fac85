"""A run on disk: its directory, its attempts, the records that roles leave and the way they find each other."""
