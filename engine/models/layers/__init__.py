"""The parts that a decoder's blocks are made of."""
