"""A small, fast inference engine: paged, batched, observable. Independent of any user interface."""
