"""Mixtures of experts: the choice of experts, and products with the weights of the chosen ones."""
