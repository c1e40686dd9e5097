"""Models: what a config says, layers, loaders, and where a name leads."""
