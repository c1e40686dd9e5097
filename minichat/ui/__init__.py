"""The screen: what it is made of, and how it is laid out."""
