"""One file a question, in folders by subject. `python -m benchmarks` lists them; results/ has the figures."""
