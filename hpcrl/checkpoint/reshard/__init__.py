"""From one layout of shards to another: which bytes of whose shards each rank needs."""
