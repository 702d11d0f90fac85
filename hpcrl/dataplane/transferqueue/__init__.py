"""The data plane over TransferQueue, run as plain processes without Ray."""
