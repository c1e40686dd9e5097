"""HTTP itself: sockets, limits, keys, bodies and errors."""
