"""The screen, on a real terminal and on one that only counts bytes."""
