"""The same index on several processes or machines: `workers` build it, `shards` serve it."""
