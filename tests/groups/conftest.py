"""The small models of tests/runner, made and loaded once here too."""

from tests.runner.conftest import checkpoint, llama, models_are_loaded_once

__all__ = ["checkpoint", "llama", "models_are_loaded_once"]
