"""The charts of `minichat quality`."""
