"""The tour: shows the features of the real engine step by step on the real screen."""
