"""Which block size is fastest for the load that is there: acceptance length by block, step time by block and concurrency, the best block
size."""
