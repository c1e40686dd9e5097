"""Benchmarks for developers, in folders by subject. `minichat bench` answers the questions of users.

`python -m benchmarks` lists them; results/ holds their figures.
"""
