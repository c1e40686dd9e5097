"""The tour: the real engine led through what it can do, step by step on the real screen."""
