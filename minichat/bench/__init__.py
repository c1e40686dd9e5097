"""Figures about speed, memory and cost: the questions of `minichat bench`, and how all benchmarks measure."""
