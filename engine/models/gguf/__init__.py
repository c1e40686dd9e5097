"""GGUF files as checkpoints: their metadata as a config.json, their tensors under the names of one."""
