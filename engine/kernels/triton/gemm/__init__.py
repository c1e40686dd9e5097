"""Matrix products, and the operations fused with them."""
