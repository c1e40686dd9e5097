"""What was said, and where it is kept."""
