"""F4: how weights and KV cache are stored, and the memory left."""
