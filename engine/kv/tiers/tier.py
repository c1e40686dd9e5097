"""The interface of a storage tier, and the orders that it carries out.

The scheduler asks a tier what it holds and sends orders; the runner carries them out concurrently with
its steps. Each rank has its own tiers, which get the same orders.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from engine.kv.tiers.cost import MeasuredCost

BlockName = bytes  # the hash of a block's tokens and all before them: its key in every tier
TransferKind = Literal["store", "load", "release", "forget", "own"]


@dataclass(frozen=True, slots=True)
class TransferOrder:
    """An order for a tier. Stores and loads run concurrently with the steps and report their end."""

    id: int
    kind: TransferKind
    tier: str
    names: tuple[BlockName, ...]
    blocks: tuple[int, ...] = ()  # for a store or load: device blocks, one for each name
    owner: str = ""  # for an own: the chat that the blocks belong to


@dataclass(frozen=True, slots=True)
class TransferEnd:
    """A store or load has ended, on every rank."""

    id: int
    seconds: float = 0.0
    error: str = ""  # why it failed, or ""


class Transfer(Protocol):
    """A store or load in flight. A Future of its seconds also qualifies."""

    def done(self) -> bool: ...

    def result(self) -> float:
        """Wait for the end and return the seconds it took. Raises if it failed."""


@runtime_checkable
class DeviceCopy(Transfer, Protocol):
    """A transfer that only the device still works on, so it can no longer fail alone."""

    def follow(self) -> bool:
        """Have the device start later steps after its end. False: too much is left to copy for that."""


@dataclass(frozen=True, slots=True)
class CompletedTransfer:
    """A transfer that completed immediately."""

    seconds: float

    def done(self) -> bool:
        return True

    def result(self) -> float:
        return self.seconds


class DeviceBlocks(Protocol):
    """Blocks of the device's cache, as left by the steps launched so far."""

    numbers: tuple[int, ...]

    def read(self) -> Callable[[], np.ndarray]:
        """Copy the blocks, which do not change until then. The callable waits for the bytes, on any thread:
        [blocks, bytes per block] uint8.
        """

    def buffer(self, count: int, nbytes: int) -> np.ndarray:
        """Memory for `count` blocks of `nbytes`, from which `write` copies without another copy first."""

    def write(self, data: np.ndarray, at: int = 0) -> None:
        """Fill the blocks from the index `at` on with such bytes; return when they are on the device.
        Callable from any thread.
        """

    def move(self, *works: Callable[[], None]) -> Transfer:
        """Run works that move blocks on the device, one after the other; on a GPU, on a separate stream, and
        steps can follow once the last one has begun.
        """


class Tier(Protocol):
    """Keeps blocks by name. All methods are called on the engine's thread, and none of them waits.

    While a transfer is in flight, only loads may name its blocks. Failures raise, here or from the
    transfer; blocks that fail to load are recomputed. Subclasses inherit what is not specific to them.
    """

    name: str
    cost: MeasuredCost
    persistent: bool = False  # it keeps blocks after the engine ends, and makes room itself
    transit: bool = False  # it only carries blocks to other engines, when a request asks for that
    problem: str = ""  # why it stores nothing now

    @property
    def size(self) -> int:
        """Maximum number of blocks it holds."""

    @property
    def used(self) -> int:
        """How many blocks it holds."""
        return self.size - self.room()

    @property
    def way(self) -> str:
        """How blocks get to other engines, if it carries them."""
        return ""

    def room(self) -> int:
        """How many more blocks it can take now."""

    def holds(self, names: Sequence[BlockName]) -> int:
        """The length of the longest prefix of `names` that it holds."""

    def store(self, names: Sequence[BlockName], blocks: DeviceBlocks) -> Transfer:
        """Copy the blocks. The transfer ends once the device's blocks may change."""

    def load(self, names: Sequence[BlockName], blocks: DeviceBlocks) -> Transfer: ...

    def release(self, names: Sequence[BlockName]) -> None:
        """Reuse the space of these when needed: no request waits for them."""

    def own(self, names: Sequence[BlockName], owner: str) -> None:
        """These blocks belong to the owner, too. Only persistent tiers are asked."""
        return

    def forget(self, names: Sequence[BlockName]) -> None:
        """The contents of these may be wrong and must not be found again."""

    def reset(self) -> None:
        """The cache was rebuilt in another scheme: drop all blocks of the old one."""

    def close(self) -> None:
        """The engine ends."""
        return


def front(names: Sequence[BlockName], held: Callable[[BlockName], bool]) -> int:
    """The length of the longest prefix of `names` that the tier has."""
    return next((at for at, name in enumerate(names) if not held(name)), len(names))
