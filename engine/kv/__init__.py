"""The KV cache: blocks, their holders, and the hashes they are found by."""
