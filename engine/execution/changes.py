"""What changes a runner between two steps, as values.

A fresh runner that is given the same ones, and the same steps in between, computes the same tokens.
"""

from dataclasses import dataclass

from engine.api.config import KvSchemeName


@dataclass(frozen=True, slots=True)
class ReplaceLayer:
    """A layer of weights in another scheme; behind the last layer comes the head."""

    index: int
    scheme: str


@dataclass(frozen=True, slots=True)
class UseScheme:
    """All weights are of this scheme now: steps may go on."""

    scheme: str


@dataclass(frozen=True, slots=True)
class Resize:
    """So many blocks from now on; what is in those held stays."""

    blocks: int
    held: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Recache:
    """Another form of the cache, of which no request holds any block."""

    scheme: KvSchemeName


@dataclass(frozen=True, slots=True)
class UseGraphs:
    """Whether steps are replayed from recorded graphs."""

    on: bool


Change = ReplaceLayer | UseScheme | Resize | Recache | UseGraphs
