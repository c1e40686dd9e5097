"""Where keys and values live: blocks, who holds them, and what they can be found by."""
