"""The parts of a decoder's blocks."""
