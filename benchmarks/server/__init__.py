"""The server with many clients."""
