"""The engine's main loop, the delivery of its tokens, and changes while it runs."""
