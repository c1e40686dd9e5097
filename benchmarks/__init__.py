"""One file a question. `python -m benchmarks` lists them; results/ keeps the figures that were measured."""
