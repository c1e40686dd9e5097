"""How long a step takes in each form of the weights and the cache, measured while the engine runs."""

from bisect import bisect_right

from engine.api.snapshot import FormTime
from engine.scheduling.costs import Usual

_ROWS = (1, 2, 9, 33, 129)  # the fewest rows of each class


class FormTimes:
    """Of steps that only decode, without drafts. Forms that the engine has left keep their times."""

    def __init__(self) -> None:
        self._times = Usual[tuple[str, str, int]]()  # by the two schemes, and the class
        self._newest = ("", "", 0)

    def observe(self, weights: str, cache: str, rows: int, seconds: float) -> None:
        self._newest = newest = weights, cache, bisect_right(_ROWS, rows) - 1
        self._times.observe(newest, seconds)

    def forget(self) -> None:
        self._times.forget()

    def view(self) -> tuple[FormTime, ...]:
        """The form and class of the newest step first."""
        return tuple(
            FormTime(weights, cache, _ROWS[at], (*_ROWS, 1)[at + 1] - 1, usual, self._times.count(kind))
            for kind in sorted(self._times, key=lambda each: each != self._newest)
            if (usual := self._times.of(kind)) is not None
            for weights, cache, at in [kind]
        )
