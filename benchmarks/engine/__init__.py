"""The cost of an engine step, and the gain of each technique."""
