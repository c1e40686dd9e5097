"""F4: how weights and cache are kept, and what that leaves."""
