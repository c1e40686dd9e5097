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
        self._requests, self._codes = np.array([-1]), np.zeros(1, np.uint8)

    def of(self, requests: np.ndarray, owners: Mapping[int, Owner], live: Iterable[int]) -> np.ndarray:
        """Return the owner's code of each request; request -1 has no owner. New requests are in `live`."""
        if len(owners) != len(self._known) or any(owners.get(id) != self._known.get(id) for id in live):
            self._learn(owners)
        places = np.searchsorted(self._requests, requests)
        known = self._requests.take(places, mode="clip") == requests
        return np.where(known, self._codes.take(places, mode="clip"), np.uint8(0))

    def _learn(self, owners: Mapping[int, Owner]) -> None:
        self._known = dict(owners)
        self.owners = [UNKNOWN, *dict.fromkeys(self._known.values())][:_MOST]
        numbers = {owner: number for number, owner in enumerate(self.owners)}
        # Sorted, because a fleet's requests have numbers far too large for a table by number.
        known = [-1, *sorted(self._known)]
        self._requests = np.array(known, np.int64)
        self._codes = np.array([numbers.get(self._known.get(id, UNKNOWN), 0) for id in known], np.uint8)
