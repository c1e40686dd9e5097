"""Anthropic's routes: what a client may ask, and what it gets."""
