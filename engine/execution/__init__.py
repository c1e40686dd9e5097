"""Turns a step into tensors, runs the model, and returns the sampled tokens."""
