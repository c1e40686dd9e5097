"""Block owners: a letter and a color for each request, and a small code for use in arrays."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

_MOST = 255  # owner codes that fit into a byte


@dataclass(frozen=True, slots=True)
class Owner:
    """A chat, as the monitor shows it."""

    letter: str
    index: int  # of its color in the theme's palette
    role: str = ""  # of its requests that are not replies

    @property
    def name(self) -> str:
        return f"{self.letter} {self.role}".rstrip()


UNKNOWN = Owner("?", -1)  # the request was made elsewhere


class Codes:
    """Assigns each owner a small code; 0 is the unknown owner."""

    def __init__(self) -> None:
        self.owners: list[Owner] = [UNKNOWN]
        self._known: dict[int, Owner] = {}
        self._table = np.zeros(2, np.uint8)

    def of(self, requests: np.ndarray, owners: Mapping[int, Owner], live: Iterable[int]) -> np.ndarray:
        """Return the owner's code of each request; request -1 has no owner. New requests are in `live`."""
        if len(owners) != len(self._known) or any(owners.get(id) != self._known.get(id) for id in live):
            self._learn(owners)
        return self._table.take(requests + 1, mode="clip")

    def _learn(self, owners: Mapping[int, Owner]) -> None:
        self._known = dict(owners)
        self.owners = [UNKNOWN, *dict.fromkeys(self._known.values())][:_MOST]
        numbers = {owner: number for number, owner in enumerate(self.owners)}
        # An unowned row at either end: requests beyond the last are clipped to it.
        self._table = np.zeros(max(self._known, default=-1) + 3, np.uint8)
        for request, owner in self._known.items():
            self._table[request + 1] = numbers.get(owner, 0)
