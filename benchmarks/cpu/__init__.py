"""Products, weights and the cache on a CPU."""
