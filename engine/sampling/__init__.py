"""Samples tokens from logits: each row with its own request's parameters and random stream."""
