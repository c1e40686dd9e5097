"""Turns a plan into tensors, runs the model, and brings the sampled tokens back."""
