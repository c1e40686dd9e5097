"""The commands on chats and their replies."""
