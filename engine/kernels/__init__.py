"""Products and other inner loops that torch's public API does not offer."""
