"""The training conversations, one kind per file."""
