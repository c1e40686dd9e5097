"""One file per question, in folders by subject. `python -m benchmarks` lists them; results/ has figures."""
