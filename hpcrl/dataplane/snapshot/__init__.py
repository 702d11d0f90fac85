"""Rows of the queue on disk: written as HDF5 files of every node, committed by a manifest, read back bit for bit."""
