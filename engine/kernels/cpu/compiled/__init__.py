"""Products in C, compiled on the machine that runs them. Measured in docs/cpu-products.md."""
