"""Map text to KV blocks and back: which characters a block holds, and which blocks hold a text.

A block is identified by its tokens and all before them, so it belongs to every request with the same prefix,
whichever request computed it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np

from engine.api.layout import TokenSpan
from engine.api.snapshot import BlockView
from minichat.session.traces import Known

Spans = dict[int, list[tuple[int, int]]]  # by message id: character ranges


def same(one: np.ndarray, other: np.ndarray) -> int:
    """The length of the common prefix of two requests, in tokens."""
    length = min(len(one), len(other))
    differ = np.flatnonzero(one[:length] != other[:length])
    return int(differ[0]) if differ.size else length


def texts_of(targets: Iterable[int], view: BlockView, size: int, known: Mapping[int, Known]) -> Spans:
    """The characters in these blocks, for all messages of all chats that share them."""
    spans: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for block in targets if view.place.size else ():  # an earlier edition's engine reports no places
        owner, low = int(view.owner[block]), int(view.place[block]) * size
        high = low + int(view.filled[block])
        if owner not in known:
            continue
        for request, each in known.items():
            if request != owner and same(each.ids, known[owner].ids) < high:
                continue
            for message, start, end in each.places[low:high]:
                if message >= 0 and start < end:
                    spans[message].add((start, end))
    return {message: _joined(sorted(found)) for message, found in spans.items()}


def blocks_of(spans: Spans, view: BlockView, size: int, known: Mapping[int, Known]) -> set[int] | None:
    """The blocks that hold any of these characters; None if no known request has read them."""
    found: set[int] = set()
    read = False
    for each in known.values():
        targets = np.array([_touches(place, spans) for place in each.places], bool)
        if targets.any():
            read = True
            found |= _holding(targets, each, view, size, known)
    return found if read else None


def _holding(
    targets: np.ndarray, text: Known, view: BlockView, size: int, known: Mapping[int, Known]
) -> set[int]:
    """The blocks, of all owners, that hold one of the target tokens of this text."""
    found: set[int] = set()
    for owner, other in known.items():
        alike = same(text.ids, other.ids)
        own = np.flatnonzero(view.owner == owner)
        if not alike or not own.size or not view.place.size:
            continue
        counts = np.concatenate([[0], np.cumsum(targets[:alike])])
        low = np.minimum(view.place[own].astype(np.int64) * size, alike)
        high = np.minimum(low + view.filled[own], alike)
        found.update(own[counts[high] > counts[low]].tolist())
    return found


def _touches(place: TokenSpan, spans: Spans) -> bool:
    return any(
        place.start < end and start < place.end for start, end in spans.get(place.message, ()) if start < end
    )


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge adjacent ranges."""
    joined: list[tuple[int, int]] = []
    for start, end in spans:
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
