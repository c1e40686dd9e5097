"""The open chats and their streaming replies."""
