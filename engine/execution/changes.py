"""Changes to a runner between steps, as values.

A fresh runner that gets the same changes and the same steps in between computes the same tokens.
"""

from dataclasses import dataclass

from engine.api.cache_spec import KvSchemeName


@dataclass(frozen=True, slots=True)
class ReplaceLayer:
    """Make one layer's weights again in another scheme. The index after the last layer is the head."""

    index: int
    scheme: str


@dataclass(frozen=True, slots=True)
class UseScheme:
    """All weights have this scheme now, so steps can resume."""

    scheme: str


@dataclass(frozen=True, slots=True)
class Resize:
    """Change the number of blocks. The contents of `held` blocks are kept."""

    blocks: int
    held: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Recache:
    """Rebuild the cache in another scheme. No request holds blocks."""

    scheme: KvSchemeName


@dataclass(frozen=True, slots=True)
class UseGraphs:
    """Turn the replay of captured graphs on or off."""

    on: bool


@dataclass(frozen=True, slots=True)
class AttachAdapter:
    """Load a LoRA adapter, which rows name by its number."""

    number: int  # from 1, never used again
    folder: str
    digest: bytes  # of what it computes with


@dataclass(frozen=True, slots=True)
class DetachAdapter:
    """Release an adapter that no request uses."""

    number: int


RunnerChange = ReplaceLayer | UseScheme | Resize | Recache | UseGraphs | AttachAdapter | DetachAdapter
