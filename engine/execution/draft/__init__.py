"""Drafts made by a model inside a step, and their verification."""
