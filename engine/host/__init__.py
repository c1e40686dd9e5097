"""Where an engine lives: its thread, and how others speak to it."""
