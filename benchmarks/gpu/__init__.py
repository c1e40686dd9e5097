"""The engine and its parts on a GPU."""
