"""The screen: its parts and its layout."""
