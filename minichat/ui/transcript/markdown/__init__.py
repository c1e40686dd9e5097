"""Markdown as lines of cells: split into leaves, parsed, laid out and highlighted."""
