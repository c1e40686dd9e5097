"""Quantization schemes for the weights of products, and conversion between them."""
