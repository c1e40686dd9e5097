"""Drafts that a model makes inside a step, and their verification."""
