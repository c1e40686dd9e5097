"""Schemes that keep the weights of products in fewer bits, and the change from one to another."""
