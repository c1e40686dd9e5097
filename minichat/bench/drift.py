"""How far the median of another run may be from the samples of this one.

The rounds of a sitting say little about another day: machines differ, and what else runs on them. The
sittings of a run say more, but two of them may agree by chance. So the drift is pooled: it is twice the
median difference between sittings, over all figures of a question with the same unit. If differences are
normal, 19 of 20 runs of two sittings differ by less. What is measured only once has no drift, and blocks
and bytes, which are counted, have none if most of them are the same in all sittings.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace

from minichat.bench.harness import Figure

_LEAST = 0.05  # sessions of one commit on a GPU differ by this much where their sittings do not
_TIMES = 2
COUNTED = ("blocks", "B")  # units of figures that are mostly the same in all sittings


def drifting(cases: Sequence[tuple[Figure, ...]]) -> list[tuple[Figure, ...]]:
    """The figures of all cases of a question, with the expected drift."""
    drift = _by_kind(figure for figures in cases for figure in figures)
    return [
        tuple(
            replace(each, drift=drift.get(_kind(each), _LEAST if each.samples > 1 else 0.0))
            for each in figures
        )
        for figures in cases
    ]


def _by_kind(figures: Iterable[Figure]) -> dict[str, float]:
    moved: dict[str, list[float]] = {}
    for figure in figures:
        if figure.moved is not None:
            moved.setdefault(_kind(figure), []).append(figure.moved)
    drift = {kind: _TIMES * statistics.median(each) for kind, each in moved.items()}
    return {kind: each if kind in COUNTED else max(_LEAST, each) for kind, each in drift.items()}


def _kind(figure: Figure) -> str:
    """The unit; all rates are one kind."""
    return "/s" if figure.unit.endswith("/s") else figure.unit
