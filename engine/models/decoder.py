"""The native decoder: an embedding, blocks of the parts its family names, a last norm, a head.

The tokens of all requests are concatenated; only `attend` determines which tokens see each other.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.api.cache_spec import CacheSpec
from engine.api.config import DecoderConfig
from engine.api.errors import BadInput
from engine.attention.base import Attend
from engine.later import without_data
from engine.models.adapters.products import StepAdapters
from engine.models.families import Family, named, names
from engine.models.layers.block import Block, LoneBlock, NormedTermBlock, ParallelBlock, ScaledBlock
from engine.models.layers.build import Build
from engine.models.layers.collective import Collective
from engine.models.layers.next_token import NextTokenHead
from engine.models.layers.sharding import VOCABULARY, WHOLE, Sharding
from engine.models.layers.step import ExpertTally, StepContext
from engine.models.rope import rope_table
from engine.quant.base import Scheme, make_product
from engine.quant.linear import Linear, parameter


def family_of(config: DecoderConfig) -> Family:
    if (found := named(config.family)) is None:
        raise BadInput(f"there is no model family {config.family!r}; there are {', '.join(names())}")
    return found


def build_of(
    config: DecoderConfig, dtype: torch.dtype, ranks: int = 1, collective: Collective | None = None
) -> Build:
    family = family_of(config)
    return Build(
        dtype=dtype,
        eps=config.norm_eps,
        names=family.names,
        norms=family.norms,
        norm_bias=family.norm_bias,
        norms_input=family.arrangement in ("pre", "lone", "sandwich"),
        norm_operator=family.norm,
        product_operator=family.product,
        ranks=ranks,
        collective=collective,
    )


def block(
    config: DecoderConfig,
    index: int,
    dtype: torch.dtype,
    ranks: int = 1,
    collective: Collective | None = None,
    prefix: str = "",
) -> Block:
    """Create an empty block on the current default device, with the shapes of one rank's share.

    `prefix`: of its tensors in a checkpoint; empty: the one of its index.
    """
    family, build, spec = family_of(config), build_of(config, dtype, ranks, collective), config.layers[index]
    mixer = (family.linear if spec.state is not None else None) or family.attention
    feed_forward = (index in config.dense and family.dense) or family.feed_forward
    name = family.names["block"].format(config.before + index)
    name = prefix or name
    if family.arrangement == "lone":
        mixes = spec.state is not None or spec.has_keys
        kind = mixer if mixes else feed_forward
        assert kind is not None, "no layer has a feed-forward"
        made: Block = LoneBlock(index, kind.part()(config, index, build), name, mixes=mixes)
        made.collective = collective
        return made
    assert feed_forward is not None, "a layer without one is lone"
    parts = (index, mixer.part()(config, index, build), feed_forward.part()(config, index, build), name)
    match family.arrangement:
        case "parallel":
            made = ParallelBlock(*parts, build)
        case "sandwich" | "post":
            made = NormedTermBlock(*parts, build)
        case _:
            scales = family.ends.scales_terms
            made = ScaledBlock(*parts, scale=config.residual_scale) if scales else Block(*parts)
    made.collective = collective
    return made


def next_token_head(config: DecoderConfig, dtype: torch.dtype) -> NextTokenHead:
    """Create an empty head for multi-token prediction on the current default device."""
    names, index = family_of(config).mtp, len(config.layers)
    spec = next(each for each in reversed(config.layers) if each.has_keys)
    longer = replace(config, layers=(*config.layers, spec))
    layer = block(longer, index, dtype, prefix=names["block"].format(index))
    return NextTokenHead(layer, spec, config.hidden, build_of(config, dtype), names)


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
        """Make the head of a model whose head is not tied to the embedding."""


class Decoder(nn.Module):
    """Created empty, on the current default device; a Checkpoint or `random_weights` fills it.

    A stage of a pipeline has some of the layers. The first one has the embedding, the last one the head.

    A hollow decoder has only shapes for its layers, and for its head unless that is tied to the embedding: a
    source creates them one by one.
    """

    rope: Tensor
    local_rope: Tensor | None
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
        embeds = not config.before or (config.tied and not config.after)
        self.embed = parameter(rows if embeds else 0, config.hidden, dtype=dtype)

        def layers() -> tuple[nn.ModuleList, nn.Parameter | None]:
            made = (block(config, i, dtype, ranks, collective) for i in range(len(config.layers)))
            head = None if config.tied or config.after else parameter(rows, config.hidden, dtype=dtype)
            return nn.ModuleList(made), head

        self.layers, own = without_data(layers) if hollow else layers()
        build = build_of(config, dtype)
        self.norm: nn.Module = build.norm(config.hidden)
        normed = "embed_norm" in self.family.names and not config.before
        self.embed_norm: nn.Module | None = build.norm(config.hidden) if normed else None
        self.mtp: NextTokenHead | None = None  # set by the loader, if the head drafts
        self.taps: dict[int, Tensor | None] = {}  # what these layers read in the newest forward
        self.tap_buffers: dict[int, Tensor] = {}  # where graphs leave the same, padded
        self.tally: ExpertTally | None = None
        if config.experts is not None:
            counters = torch.zeros(len(config.layers), config.experts.count, dtype=torch.int64)
            self.tally = ExpertTally(counters)
        self.head: nn.Module = nn.Identity() if config.after else Linear(self.embed if own is None else own)
        self._embed_scale = float(torch.tensor(config.embed_scale, dtype=dtype, device="cpu"))
        for name, spec in (("rope", config.rope), ("local_rope", config.local_rope)):
            room = (config.rotary_dim, config.max_context, dtype)
            self.register_buffer(name, None if spec is None else rope_table(spec, *room), persistent=False)

    @property
    def sinks(self) -> Mapping[int, Tensor]:
        found = {each.index: each.mixer.sinks for each in self.blocks if each.mixer is not None}
        return {index: sinks for index, sinks in found.items() if sinks is not None}

    @property
    def requantizable(self) -> "Decoder":
        return self

    @property
    def tied(self) -> bool:
        return self.config.tied

    def new_head(self, scheme: Scheme) -> nn.Module:
        """Make the head for layers in this scheme. A tied one is made from the embedding."""
        return (
            make_product(self.source.of_head(scheme), self.embed, None)
            if self.tied
            else self.source.head(scheme)
        )

    @property
    def blocks(self) -> list[Block]:
        return [each for each in self.layers if isinstance(each, Block)]

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        attend: Attend,
        layers: int | None = None,
        adapters: StepAdapters | None = None,
        stream: Tensor | None = None,
    ) -> Tensor:
        """[T] -> [T, hidden] after the last norm; `layers`: exit early after this many layers.

        `stream`: what the stage before this one has computed, which is overwritten. A stage before the last
        returns its own.
        """
        x = self.embedded(ids) if stream is None else stream
        step = StepContext(
            positions, self.rope, attend, local_rope=self.local_rope, adapters=adapters, tally=self.tally
        )
        for at, each in enumerate(islice(self.layers, layers)):
            if at in self.taps:
                self.taps[at] = x.clone()
            each.forward(x, step)
        return self.ended(x)

    def ended(self, x: Tensor) -> Tensor:
        """Return what follows the layers: the last norm, or in a stage before the last nothing."""
        out: Tensor = x if self.config.after else self.norm(x)
        return out

    def embedded(self, ids: Tensor) -> Tensor:
        return self.scaled(self._looked_up(ids))

    def _looked_up(self, ids: Tensor) -> Tensor:
        if self.collective is None:
            return F.embedding(ids, self.embed)
        own = ids - self.collective.rank * len(self.embed)
        elsewhere = (own < 0) | (own >= len(self.embed))
        found = F.embedding(own.masked_fill(elsewhere, 0), self.embed)
        return self.collective.sum(found.masked_fill_(elsewhere[:, None], 0))

    def scaled(self, x: Tensor) -> Tensor:
        """Scale embeddings in place, or norm them. The factor is rounded to their type, as in training."""
        x = x if self._embed_scale == 1.0 else x.mul_(self._embed_scale)
        return x if self.embed_norm is None else self.embed_norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, hidden] -> [N, vocab], in float32 for any weight dtype."""
        logits: Tensor = self.head(hidden)
        if self.collective is not None:
            logits = self.collective.gather(logits)[:, : self.config.vocab]  # the last shares are padded
        return self.capped(logits.float())

    def capped(self, logits: Tensor) -> Tensor:
        """Scale and cap logits in place."""
        scale, cap = self.config.logit_scale, self.config.logit_cap
        if scale != 1.0:
            logits.mul_(scale)
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    @property
    def caches(self) -> tuple[CacheSpec, ...]:
        """What each layer caches: this rank's heads."""
        mixers = ((each.mixer, self.config.layers[each.index]) for each in self.blocks)
        return tuple((mixer and mixer.cache) or spec for mixer, spec in mixers)

    def shards(self, ranks: int) -> dict[str, Sharding]:
        """Return each checkpoint tensor's sharding. Embeddings are summed over ranks, logits concatenated."""
        names = self.family.names
        found = {f"{names['embed']}.weight": VOCABULARY}
        found |= {f"{names['norm']}.{kind}": WHOLE for kind, _ in self.norm.named_parameters()}
        if self.embed_norm is not None:
            found |= {
                f"{names['embed_norm']}.{kind}": WHOLE for kind, _ in self.embed_norm.named_parameters()
            }
        if not self.tied:
            found[f"{names['head']}.weight"] = VOCABULARY
        for each in self.blocks:
            found |= each.shards(ranks)
        return found
