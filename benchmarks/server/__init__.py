"""The server under many clients."""
