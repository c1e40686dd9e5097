"""Large packages that only some tests use: every test process imports all test files."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any


class LazyModule:
    """A module that is imported at the first use of one of its attributes."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # pytest asks every global of a test file for `__test__` and `__bases__`
            raise AttributeError(name)
        return getattr(import_module(self._name), name)


def lazy(name: str) -> LazyModule:
    assert find_spec(name) is not None, f"{name} is not installed"
    return LazyModule(name)
