"""Small graphs of one colour. Braille has two columns and four rows of dots a character."""

from collections.abc import Sequence
from itertools import pairwise

_LEFT = (0x00, 0x40, 0x44, 0x46, 0x47)  # filled from below
_RIGHT = (0x00, 0x80, 0xA0, 0xB0, 0xB8)
_ASCII = " _.-^"
_STEPS = 4  # heights within one line


def graph(
    values: Sequence[float], width: int, height: int = 1, *, ascii: bool = False, top: float | None = None
) -> list[str]:
    """Lines of text from the top to the bottom; the newest value is at the right."""
    columns = width if ascii else 2 * width
    shown = values[-columns:] if columns > 0 else ()
    most = max(top or 0.0, max(shown, default=0.0)) or 1.0
    heights = [0] * (columns - len(shown)) + [_height(value / most, height) for value in shown]
    return [_line(heights, floor * _STEPS, ascii) for floor in reversed(range(height))]


def _height(share: float, lines: int) -> int:
    """In dots; whatever is more than nothing is seen."""
    return max(round(share * lines * _STEPS), 1) if share > 0 else 0


def _line(heights: Sequence[int], floor: int, ascii: bool) -> str:
    within = [min(max(height - floor, 0), _STEPS) for height in heights]
    if ascii:
        full = [height > floor + _STEPS for height in heights]
        return "".join("|" if more else _ASCII[here] for more, here in zip(full, within, strict=True))
    pairs = zip(within[::2], within[1::2], strict=True)
    return "".join(chr(0x2800 | _LEFT[left] | _RIGHT[right]) for left, right in pairs)


def bar(share: float, width: int, full: str, rest: str) -> str:
    filled = round(min(max(share, 0.0), 1.0) * width)
    return full * filled + rest * (width - filled)


def shares(parts: Sequence[float], width: int) -> list[int]:
    """How many of the cells each part gets; together all of them, and none to a part that is nothing."""
    total = sum(parts)
    if total <= 0:
        return [0] * len(parts)
    edges, reached = [0], 0.0
    for part in parts:
        reached += part
        edges.append(round(reached / total * width))
    return [after - before for before, after in pairwise(edges)]
