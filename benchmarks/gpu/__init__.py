"""The engine on a GPU, and its parts there."""
