"""One model shared by several processes, one a rank: each runs all steps with its share of the weights."""
