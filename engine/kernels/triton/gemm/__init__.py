"""Matrix products, and what is fused with them."""
