"""Anthropic's routes: their requests and responses."""
