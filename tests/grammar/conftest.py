"""Fixtures of tests/runner: small models, made and loaded once."""

from tests.runner.conftest import checkpoint, llama, load_each_model_once

__all__ = ["checkpoint", "llama", "load_each_model_once"]
