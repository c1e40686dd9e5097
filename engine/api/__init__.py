"""The vocabulary: what everything else speaks of, and its form as bytes and JSON. No torch."""
