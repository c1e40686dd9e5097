"""Benchmarks, in folders by subject. `python -m benchmarks` lists them; results/ holds their figures."""
