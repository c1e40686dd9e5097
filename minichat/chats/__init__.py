"""Chats and their storage."""
