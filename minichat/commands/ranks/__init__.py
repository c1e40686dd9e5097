"""Ranks of an engine on another machine."""
