"""How bytes move between this machine, the bucket and other buckets, some at the same time."""
