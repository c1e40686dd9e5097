"""Products and norms for CPUs."""
