"""One turn of the engine, who gets its tokens, and what may change while it runs."""
