"""The charts of `minichat quality` and `minichat bench`."""
