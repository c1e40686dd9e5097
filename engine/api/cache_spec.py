"""What a layer caches between steps. Plain values, no tensors."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from engine.api.errors import BadInput

KvSchemeName = Literal["none", "int8", "fp8", "int4"]
KV_SCHEMES: tuple[KvSchemeName, ...] = get_args(KvSchemeName)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpec:
    """The sizes of a recurrent state: what a layer keeps of all tokens so far, however many they are.

    Of a state space (Mamba-2), values are its inputs, keys and queries its B and C, and key heads its groups.
    A layer that is only a convolution has one head without keys.
    """

    heads: int  # of values; each has a matrix of key_dim x value_dim
    key_heads: int  # each serves as many value heads
    key_dim: int
    value_dim: int
    taps: int  # tokens that the convolution before it reads, the newest included
    replaces: bool = False  # whether a token replaces what its key reads from a matrix, not only adds to it

    @property
    def channels(self) -> int:
        """Numbers of a token that the convolution reads: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.heads * self.value_dim

    @property
    def numbers(self) -> int:
        """Numbers that are kept: the matrices, and the last inputs of the convolution."""
        return self.heads * self.key_dim * self.value_dim + (self.taps - 1) * self.channels

    @property
    def operations(self) -> int:
        """Those of a token: of the convolution, and to scale the matrices, add to them and read them."""
        each = 1 + 2 + 2 * (1 + self.replaces)
        return 2 * self.taps * self.channels + each * self.heads * self.key_dim * self.value_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSpec:
    """What a layer caches between steps and what attention needs; determines the cache's tensor sizes."""

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    window: int | None = None  # a token sees itself and the window - 1 before it
    chunk: int | None = None  # instead: texts are cut into chunks of so many tokens, and a token sees its own
    kept: int = 0  # with a window: the first tokens of a request, also visible
    softcap: float | None = None  # scores pass through cap * tanh(score / cap)
    slopes: tuple[float, ...] = ()  # of each head: a score loses so much for each token between (ALiBi)
    sinks: bool = False  # a learned score per head in addition to the keys, stored in KVLayer.sinks
    latent: bool = False  # values are the first numbers of the keys, and not stored again
    state: StateSpec | None = None  # of each block: that after its last token. Keys may be beside it

    def check_ranks(self, ranks: int) -> None:
        """Raise if the heads cannot be split. Ranks beyond the number of key heads share one."""
        if self._splits(ranks):
            return
        *most, last = map(str, filter(self._splits, range(1, self.heads + 1)))
        raise BadInput(
            f"tp: {self.heads} query heads and {self.kv_heads} KV heads cannot be split over {ranks} ranks, "
            f"only {' or '.join(filter(None, (', '.join(most), last)))}"
        )

    def _splits(self, ranks: int) -> bool:
        return not self.heads % ranks and (not self.kv_heads % ranks or not ranks % self.kv_heads)

    @classmethod
    def of_state(cls, state: StateSpec) -> "CacheSpec":
        """The spec of a layer without keys and values."""
        return cls(heads=0, kv_heads=0, key_dim=0, value_dim=0, scale=1.0, state=state)

    @classmethod
    def of_nothing(cls) -> "CacheSpec":
        """The spec of a layer that mixes no tokens."""
        return cls(heads=0, kv_heads=0, key_dim=0, value_dim=0, scale=1.0)

    def oldest(self, position: int) -> int:
        """The first token that one at `position` sees, apart from the `kept` ones."""
        if self.chunk is not None:
            return position - position % self.chunk
        return 0 if self.window is None else max(0, position + 1 - self.window)

    @property
    def reach(self) -> int | None:
        """The most tokens that one sees, apart from the `kept` ones. None: there is no limit."""
        return self.window or self.chunk

    @property
    def has_keys(self) -> bool:
        """Whether it is a layer of attention over a cache of keys and values."""
        return self.kv_heads > 0

    @property
    def rotary_dim(self) -> int:
        """How many numbers of a key positions may rotate: in a latent, those that are not values."""
        return self.key_dim - self.value_dim if self.latent else self.key_dim


LayerSpec = CacheSpec  # the older name


def keeps_state(specs: Iterable[CacheSpec]) -> bool:
    """Whether some layers have a recurrent state, which cannot go back to an earlier token of a block."""
    return any(spec.state is not None for spec in specs)


def why_not_packed(specs: Iterable[CacheSpec], scheme: KvSchemeName) -> str | None:
    """Return why these layers cannot be cached in that scheme, or None."""
    specs = tuple(specs)
    if scheme != "none" and any(spec.latent for spec in specs):
        return f"a cache of latents cannot be stored as {scheme}: one scale for a whole latent loses too much"
    if scheme == "int4" and any(spec.key_dim % 2 or spec.value_dim % 2 for spec in specs):
        return "int4 stores two numbers per byte, and a head of this model has an odd number of them"
    return None
