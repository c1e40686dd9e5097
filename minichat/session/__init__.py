"""The chats that are open, and their replies as they come."""
