"""A small, fast inference engine: paged, batched, observable. It knows nothing of who shows it."""
