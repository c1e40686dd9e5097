"""What a kind of part is. Needs no torch until a class is requested."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from engine.models.fields import Fields

if TYPE_CHECKING:
    from engine.models.layers.part import Part

Flag = tuple[str, bool]  # a field's name and its default
Real = tuple[str, float]


class PartKind(Protocol):
    def read(self, fields: Fields, layers: int) -> Mapping[str, Any]:
        """Return the DecoderConfig fields the part reads from config.json. Raises if they are unsupported."""

    def part(self) -> type[Part]:
        """Return the part's class, imported on demand."""


def optional(fields: Fields, key: str, default: float | None) -> float | None:
    """Return a number that a null switches off."""
    if fields.get(key) is None and (fields.given(key) or default is None):
        return None
    return fields.real(key, default)
