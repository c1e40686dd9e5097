"""Every causal language model of transformers, small and with random weights, through the engine."""
