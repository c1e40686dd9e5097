"""The small models of tests/runner, made and loaded once here too."""

from tests.runner.conftest import checkpoint, llama, load_each_model_once

__all__ = ["checkpoint", "llama", "load_each_model_once"]
