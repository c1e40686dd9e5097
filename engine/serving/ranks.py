"""What an engine needs of the ranks that share its model."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from engine.api.snapshot import Load, RankView


class Ranks(Protocol):
    def check(self) -> None:
        """Raise EngineDead if a rank is lost."""

    def on_loss(self, call: Callable[[], None]) -> None:
        """Call this, from another thread, when a rank is lost."""

    def views(self, device: str, memory: Mapping[str, int]) -> tuple[RankView, ...]:
        """All ranks. `memory`: that of this process, as in a snapshot."""

    def close(self) -> None:
        """End the other ranks."""


class Alone:
    """No other process shares the model."""

    def check(self) -> None:
        """Nothing can be lost."""

    def on_loss(self, call: Callable[[], None]) -> None:
        """Nothing can be lost."""

    def views(self, device: str, memory: Mapping[str, int]) -> tuple[RankView, ...]:
        return ()

    def close(self) -> None:
        """Nothing to end."""


ALONE = Alone()


def load_of_all(parts: Iterable[Load | None]) -> Load | None:
    """Devices that are busy for half of the time on average use and may use the sum of their watts."""
    found = [each for each in parts if each is not None]
    if not found:
        return None
    busy = sum(each.busy for each in found) / len(found)
    return Load(busy, sum(each.watts for each in found), sum(each.limit for each in found))
