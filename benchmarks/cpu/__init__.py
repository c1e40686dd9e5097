"""Matrix products, quantized weights and the KV cache on a CPU."""
