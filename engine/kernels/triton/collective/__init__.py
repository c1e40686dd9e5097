"""Sums and gathers over GPUs that can access each other's memory."""
