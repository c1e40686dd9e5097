"""The engine's public types, and their form as bytes and JSON. No torch."""
