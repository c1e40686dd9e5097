"""Products and norms on a CPU."""
