"""Models: configs, layers, loaders, and finding a model by name."""
