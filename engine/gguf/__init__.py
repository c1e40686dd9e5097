"""Reads GGUF files: their metadata and where their tensors are. Needs no torch."""
