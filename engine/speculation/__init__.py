"""Speculative decoding: drafting, verification, and whether drafting pays off."""
