"""Sampling from logits without a sort."""
