"""What the model is taught, one kind of conversation a file."""
