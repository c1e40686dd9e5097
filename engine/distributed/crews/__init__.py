"""The other ranks of an engine: on this machine, or on several."""
