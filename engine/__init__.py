"""A small, fast inference engine: paged, batched, observable. It knows nothing of the program that shows it."""
