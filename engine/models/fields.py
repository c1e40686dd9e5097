"""Typed reading of a JSON object; every error names the file, the key and the value."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.api.errors import BadCheckpoint, UnsupportedModel

# Bounds far above any real model: values beyond them mean a broken file, and would request absurd amounts of
# memory.
MOST_LAYERS, MOST_HEADS, MOST_HEAD_DIM, MOST_WIDTH = 1024, 1024, 1024, 1 << 20
TIED = "tie_word_embeddings"
MOST_TOKENS = 1 << 24  # of a vocabulary or a context


class Fields:
    """A null counts as a missing key, except for `given`."""

    def __init__(
        self, file: Path, values: dict[str, Any], path: str = "", own: Mapping[str, str] | None = None
    ) -> None:
        """`own`: the names that some keys have in the file."""
        self.file, self.values, self.path, self._own = file, values, path, own or {}

    @classmethod
    def read(cls, file: Path) -> "Fields":
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise BadCheckpoint(f"{file} cannot be read as JSON: {error}") from error
        if not isinstance(values, dict):
            raise BadCheckpoint(f"{file} must hold a JSON object, not {_shown(values)}")
        return cls(file, values)

    def given(self, key: str) -> bool:
        return key in self.values

    def get(self, key: str) -> Any:
        return self.values.get(key)

    def whole(self, key: str, default: int | None = None, *, low: int = 1, high: int) -> int:
        value = self._or(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.bad(key, f"must be a whole number from {low} to {high}")
        return value

    def real(self, key: str, default: float | None = None, *, above: float = 0, high: float = 1e12) -> float:
        value = self._or(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not above < value <= high:
            raise self.bad(key, f"must be a number above {above:g}, up to {high:g}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._or(key, default)
        if not isinstance(value, bool):
            raise self.bad(key, "must be true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._or(key, default)
        if not isinstance(value, str):
            raise self.bad(key, "must be a string")
        return value

    def list(self, key: str, default: list[Any] | None = None) -> list[Any]:
        value = self._or(key, default)
        if not isinstance(value, list):
            raise self.bad(key, "must be a list")
        return value

    def inside(self, key: str) -> "Fields":
        value = self._or(key, {})
        if not isinstance(value, dict):
            raise self.bad(key, "must be an object")
        return Fields(self.file, value, f"{self.path}{key}.")

    def joined(self, key: str) -> "Fields":
        """The object at `key`, with the fields beside it that it lacks, and whether its weights are tied."""
        inner = self.inside(key).values
        beside = {name: value for name, value in self.values.items() if name == TIED or name not in inner}
        return Fields(self.file, inner | beside, self.path)

    def with_usual(self, usual: Mapping[str, Any]) -> "Fields":
        """Return the fields with these values for those that are missing."""
        return Fields(self.file, {**usual, **self.values}, self.path, self._own)

    def renamed(self, names: Mapping[str, str]) -> "Fields":
        """Return the fields with other names for some, which also replace those of that name."""
        own = {new: old for old, new in names.items() if self.values.get(old) is not None}
        found = {new: self.values[old] for new, old in own.items()}
        return Fields(self.file, self.values | found, self.path, own)

    def bad(self, key: str, rule: str) -> BadCheckpoint:
        value = "missing" if self.get(key) is None else _shown(self.get(key))
        return BadCheckpoint(f"{self._name(key)} is {value}; it {rule}")

    def unsupported(self, key: str, why: str) -> UnsupportedModel:
        return UnsupportedModel(f"{self._name(key)} is {_shown(self.get(key))}; {why}")

    def _name(self, key: str) -> str:
        return f"{self.file}: {self.path}{self._own.get(key, key)}"

    def _or(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        return default if value is None else value


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
