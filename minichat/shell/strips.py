"""Cheaper strips: Textual makes seven caches for each strip, and most strips use one or two of them.

A strip is a line that a widget has rendered, or a piece of one. Making the caches took a tenth of the
screen's time, so here each is made when it is first read.
"""

from collections.abc import Iterable

from rich.segment import Segment
from textual.cache import FIFOCache
from textual.strip import Strip

plain = Strip.__init__
SIZES = {
    "_divide_cache": 4, "_crop_cache": 16, "_style_cache": 16, "_filter_cache": 4, "_line_length_cache": 4,
    "_crop_extend_cache": 4, "_offsets_cache": 4,
}  # fmt: skip


def _begin(strip: Strip, segments: Iterable[Segment], cell_length: int | None = None) -> None:
    strip._segments, strip._cell_length = list(segments), cell_length
    strip._render_cache = strip._link_ids = strip._cell_count = None


def _missing(strip: Strip, name: str) -> FIFOCache:
    """Python asks for an attribute here only if the strip does not have it yet."""
    if name not in SIZES:
        raise AttributeError(f"a strip has no {name!r}")
    cache: FIFOCache = FIFOCache(SIZES[name])
    setattr(strip, name, cache)
    return cache


def install() -> None:
    """Make all strips of this process so."""
    Strip.__init__ = _begin  # type: ignore[method-assign,assignment]
    Strip.__getattr__ = _missing  # type: ignore[attr-defined]
