"""What a tier is, and the values that tell it what to move.

The scheduler asks a tier what it holds, and sends orders; the runner carries them out beside its steps. Each
rank has tiers of its own, which get the same orders.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from engine.kv.tiers.cost import MeasuredCost

BlockName = bytes  # the hash of a block's tokens and of all before them: its address in every tier
TransferKind = Literal["store", "load", "release", "forget"]


@dataclass(frozen=True, slots=True)
class TransferOrder:
    """What a tier is to do with blocks. A store or a load goes on beside the steps, and ends."""

    id: int
    kind: TransferKind
    tier: str
    names: tuple[BlockName, ...]
    blocks: tuple[int, ...] = ()  # of the device, one a name, where any move


@dataclass(frozen=True, slots=True)
class TransferEnd:
    """A store or a load is over, on every rank."""

    id: int
    seconds: float = 0.0
    error: str = ""  # why it failed, if it has


class Transfer(Protocol):
    """A store or a load that is under way. A Future of its seconds is one."""

    def done(self) -> bool: ...

    def result(self) -> float:
        """Waits for the end. Gives the seconds it took; raises where it failed."""


@dataclass(frozen=True, slots=True)
class CompletedTransfer:
    """A transfer that was over at once."""

    seconds: float

    def done(self) -> bool:
        return True

    def result(self) -> float:
        return self.seconds


class DeviceBlocks(Protocol):
    """Blocks of the device's cache, as steps launched so far leave them."""

    numbers: tuple[int, ...]

    def read(self) -> Callable[[], np.ndarray]:
        """Begins to copy them. What it gives waits for their bytes, [blocks, bytes of a block] uint8."""

    def write(self, data: np.ndarray) -> None:
        """Fills them with such bytes, and returns once they are there. From any thread."""

    def move(self, work: Callable[[], None]) -> Transfer:
        """Does work that moves blocks on the device by itself: on a GPU, on a stream of its own."""


class Tier(Protocol):
    """Keeps blocks by name. All of it is called on the engine's thread, and none of it waits.

    Names of a transfer that is under way are in no other order but loads. What fails raises, here or from
    the transfer: what was to be loaded is computed instead.
    """

    name: str
    cost: MeasuredCost

    @property
    def size(self) -> int:
        """How many blocks it holds at most."""

    def room(self) -> int:
        """How many more blocks it takes now."""

    def holds(self, names: Sequence[BlockName]) -> int:
        """How many of these, from the first on, it has."""

    def store(self, names: Sequence[BlockName], blocks: DeviceBlocks) -> Transfer: ...

    def load(self, names: Sequence[BlockName], blocks: DeviceBlocks) -> Transfer: ...

    def release(self, names: Sequence[BlockName]) -> None:
        """No request waits for these any more: their room may be taken."""

    def forget(self, names: Sequence[BlockName]) -> None:
        """What lies under these is not to be trusted, and must not be found again."""

    def reset(self) -> None:
        """The cache has another form, and is empty: no block of the old one is asked for again."""


def front(names: Sequence[BlockName], held: Callable[[BlockName], bool]) -> int:
    """How many names, from the first on, are held."""
    return next((at for at, name in enumerate(names) if not held(name)), len(names))
