"""The kinds of parts a family's table lists: what each reads from config.json, and its class.

Needs no torch until a class is requested.
"""

from engine.models.kinds.attention import Grouped
from engine.models.kinds.base import PartKind
from engine.models.kinds.ends import Ends
from engine.models.kinds.experts import Routed, RoutedClamped
from engine.models.kinds.feed_forward import Dense, Ungated

__all__ = ["Dense", "Ends", "Grouped", "PartKind", "Routed", "RoutedClamped", "Ungated"]
