"""Products and other inner loops that torch's own front door does not offer."""
