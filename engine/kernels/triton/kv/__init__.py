"""What writes, moves and fetches the cache's cells and tables."""
