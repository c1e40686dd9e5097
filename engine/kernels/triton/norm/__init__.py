"""Norms, activations and embeddings."""
