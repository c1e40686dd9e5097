"""The chats side by side, and the lines around them."""
