"""The native decoder: an embedding, blocks of the parts its family names, a last norm, a head.

The tokens of all requests are concatenated; only `attend` determines which tokens see each other.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from itertools import islice
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.api.config import CacheSpec, DecoderConfig
from engine.api.errors import BadInput
from engine.attention.base import Attend
from engine.models.families import Family, named, names
from engine.models.layers.block import Block
from engine.models.layers.build import Build
from engine.models.layers.collective import Collective
from engine.models.layers.norm import Norm
from engine.models.layers.sharding import VOCABULARY, WHOLE, Sharding
from engine.models.layers.step import StepContext
from engine.models.rope import rope_table
from engine.quant.base import Scheme
from engine.quant.linear import Linear, parameter

__all__ = ["Decoder", "Linear", "Norm", "block", "parameter"]


def family_of(config: DecoderConfig) -> Family:
    if (found := named(config.family)) is None:
        raise BadInput(f"there is no model family {config.family!r}; there are {', '.join(names())}")
    return found


def build_of(config: DecoderConfig, dtype: torch.dtype, ranks: int = 1) -> Build:
    family = family_of(config)
    return Build(
        dtype=dtype,
        eps=config.norm_eps,
        names=family.names,
        norm_operator=family.norm,
        product_operator=family.product,
        ranks=ranks,
    )


def block(
    config: DecoderConfig,
    index: int,
    dtype: torch.dtype,
    ranks: int = 1,
    collective: Collective | None = None,
) -> Block:
    """Create an empty block on the current default device, with the shapes of one rank's share."""
    family, build = family_of(config), build_of(config, dtype, ranks)
    attention = family.attention.part()(config, index, build)
    feed_forward = family.feed_forward.part()(config, index, build)
    return Block(index, attention, feed_forward, family.names["block"].format(index), collective)


class Source(Protocol):
    """Makes layers and the head from the exact weights, at the start and again in any other scheme."""

    device: torch.device
    dtype: torch.dtype
    collective: Collective | None  # of the ranks that share the layers

    def scheme(self, name: str) -> Scheme:
        """Return the scheme of that name if it runs here; `none` is the checkpoint's own format."""

    def check(self) -> None:
        """Raise if the exact weights are no longer available."""

    def layer(self, index: int, scheme: Scheme) -> nn.Module: ...

    def of_head(self, scheme: Scheme) -> Scheme:
        """Return the scheme of the head when the layers use `scheme`."""

    def head(self, scheme: Scheme) -> nn.Module:
        """Make the head of a model whose head is not tied to the embedding, which is never quantized."""


class Decoder(nn.Module):
    """Created empty, on the current default device; a Checkpoint or `random_weights` fills it.

    A hollow decoder has only shapes for its layers, and for its head unless that is tied to the embedding: a
    source creates them one by one.
    """

    sinks: Mapping[int, Tensor] = {}
    rope: Tensor
    source: Source  # set by the loader

    def __init__(
        self,
        config: DecoderConfig,
        dtype: torch.dtype,
        *,
        hollow: bool = False,
        collective: Collective | None = None,
    ) -> None:
        """`collective`: of the ranks that share the model; this is the share of its rank."""
        super().__init__()
        self.config, self.family, self.collective = config, family_of(config), collective
        ranks = 1 if collective is None else collective.ranks
        rows = -(-config.vocab // ranks)
        self.embed = parameter(rows, config.hidden, dtype=dtype)
        with torch.device("meta") if hollow else nullcontext():
            self.layers = nn.ModuleList(
                block(config, i, dtype, ranks, collective) for i in range(len(config.layers))
            )
            own = None if config.tied else parameter(rows, config.hidden, dtype=dtype)
        self.norm: nn.Module = build_of(config, dtype).norm(config.hidden)
        self.head: nn.Module = Linear(self.embed if own is None else own)
        table = rope_table(config.rope, config.layers[0].key_dim, config.max_context, dtype)
        self.register_buffer("rope", table, persistent=False)

    @property
    def requantizable(self) -> "Decoder":
        return self

    @property
    def tied(self) -> bool:
        return self.config.tied

    @property
    def blocks(self) -> list[Block]:
        return [each for each in self.layers if isinstance(each, Block)]

    def forward(self, ids: Tensor, positions: Tensor, attend: Attend, layers: int | None = None) -> Tensor:
        """[T] -> [T, hidden] after the last norm; `layers`: exit early after this many layers."""
        x, step = self._embedded(ids), StepContext(positions, self.rope, attend)
        for each in islice(self.layers, layers):
            each.forward(x, step)
        out: Tensor = self.norm(x)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, hidden] -> [N, vocab], in float32 for any weight dtype."""
        logits: Tensor = self.head(hidden)
        if self.collective is not None:
            logits = self.collective.gather(logits)[:, : self.config.vocab]  # the last shares are padded
        return logits.float()

    def _embedded(self, ids: Tensor) -> Tensor:
        if self.collective is None:
            return F.embedding(ids, self.embed)
        own = ids - self.collective.rank * len(self.embed)
        elsewhere = (own < 0) | (own >= len(self.embed))
        found = F.embedding(own.masked_fill(elsewhere, 0), self.embed)
        return self.collective.sum(found.masked_fill_(elsewhere[:, None], 0))

    @property
    def caches(self) -> tuple[CacheSpec, ...]:
        """What each layer caches: this rank's heads."""
        return tuple(each.attention.cache or self.config.layers[each.index] for each in self.blocks)

    def shards(self, ranks: int) -> dict[str, Sharding]:
        """Return each checkpoint tensor's sharding. Embeddings are summed over ranks, logits concatenated."""
        names = self.family.names
        found = {f"{names['embed']}.weight": VOCABULARY, f"{names['norm']}.weight": WHOLE}
        if not self.tied:
            found[f"{names['head']}.weight"] = VOCABULARY
        for each in self.blocks:
            found |= each.shards(ranks)
        return found
