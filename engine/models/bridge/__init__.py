"""Runs other causal models of transformers over the engine's cache. Only this folder imports transformers."""
