"""Other causal models of transformers over the engine's own cache. Only this folder imports transformers."""
