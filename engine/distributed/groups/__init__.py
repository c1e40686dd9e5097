"""Ranks without memory in common: they exchange through torch.distributed, and meet through a board."""
