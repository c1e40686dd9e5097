"""What stands over the main screen until it is answered, or left."""
