"""The HTTP layer: sockets, limits, keys, bodies and errors."""
