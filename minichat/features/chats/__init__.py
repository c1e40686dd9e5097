"""Chats and their replies: what a person does to them."""
