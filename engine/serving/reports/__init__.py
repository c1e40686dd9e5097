"""Reports of what happens to cached blocks, as events."""
