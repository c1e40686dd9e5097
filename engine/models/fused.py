"""The decoder's forward on a GPU: the same computation as Decoder.forward in fewer launches.

Each part launches its own kernels (layers/): a norm includes the residual addition before it, rotation writes
the KV cache, and products of a few rows may leave partial sums for the next kernel to add up. Where it is
faster, a product's kernel includes the operation after it. A part without kernels runs its plain forward,
without programmatic dependent launch (PDL); so does a custom product or norm.
"""

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import cast

from torch import Tensor, nn

from engine.attention.base import Values
from engine.attention.graph_work import GraphMetadata, gpu
from engine.attention.triton_backend import TritonAttention, TritonMetadata
from engine.kernels.triton.norm.embed import embed, embed_share
from engine.kernels.triton.precompile import once, precompiling
from engine.kv.store import KVLayer
from engine.models.adapters.launched import AdaptedKernels
from engine.models.adapters.products import StepAdapters
from engine.models.decoder import Decoder
from engine.models.layers.block import Block
from engine.models.layers.collective import GpuCollective
from engine.models.layers.gpu import GpuKernels, GpuStep, Residual
from engine.models.layers.part import Part

logger = logging.getLogger("minichat.engine")


class FusedDecoder:
    """Reads the decoder's modules at every call, so that weights and products can be replaced."""

    def __init__(self, model: Decoder, layers: Sequence[KVLayer], attention: TritonAttention) -> None:
        self.model, self._layers, self._attention = model, layers, attention
        self._gpu = GpuKernels(gpu(model.embed.device))
        self._collective = cast(GpuCollective | None, model.collective)
        self.plain: Counter[str] = Counter()  # part name -> number of times its plain forward ran

    def embed(self, ids: Tensor, slots: Tensor, last_ids: Tensor) -> Tensor:
        """Return the initial residual stream; an id of -1 is the last token sampled in its slot."""
        table, collective = self.model.embed, self._collective
        if collective is None:
            return self.model.scaled(embed(table, ids, slots, last_ids))
        own = embed_share(table, ids, slots, last_ids, first=collective.rank * len(table))
        return self.model.scaled(collective.sum(own))

    def embedded(self, ids: Tensor) -> Tensor:
        return self.model.embedded(ids)

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        places: Tensor,
        metadata: TritonMetadata | GraphMetadata,
        adapters: StepAdapters | None = None,
        wait: Callable[[int], None] | None = None,
    ) -> Tensor:
        """Run from the embeddings [tokens, hidden], which are overwritten, to the output of the last norm.

        A stage of a pipeline runs from the output of the stage before it, or to its own.
        With adapters that do not run by kernels, all blocks run their plain forward, around the attention's.
        `wait`: is called before each layer, whose cached blocks may still arrive.
        """
        step = self._step(len(x), positions, places, metadata, adapters)
        if adapters is not None and not adapters.launches:
            return self._adapted(x, replace(step, pdl=False), wait)
        without_pdl = replace(step, pdl=False)
        residual = Residual(x, self._collective, self.model.config.residual_scale)
        for block in once(self, self._different_blocks) if precompiling() else self._blocks(wait):
            if block.index in self.model.taps:
                self.model.taps[block.index] = residual.total().clone()
            if not block.chained:
                residual = self._plain(block, residual, without_pdl)
                continue
            for part, norm in zip(block.parts, block.term_norms, strict=True):
                residual = self._through(part, norm, residual, step if part.pdl else without_pdl)
        if self.model.config.after:
            return residual.total()
        return residual.normed(self.model.norm, self._gpu, pdl=step.pdl).values

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, vocab], in the weights' dtype: the sampling kernels read it without conversion.

        A stage before the last has no head, and returns its stream as it is.
        """
        if self.model.config.after:
            return hidden
        parts = self._gpu.product(self.model.head).parts(hidden, pdl=self.pdl(len(hidden)))
        logits = parts[0] if len(parts) == 1 else parts.sum(0).to(hidden.dtype)
        if self._collective is not None:  # the last shares are padded
            logits = self._collective.gather(logits)[:, : self.model.config.vocab].contiguous()
        return self.model.capped(logits)

    def pdl(self, tokens: int) -> bool:
        """Whether the kernels of a step may start before the previous kernel ends (PDL)."""
        return self._gpu.overlaps and self.model.blocks[0].parts[-1].gains_by_pdl(tokens, self._gpu)

    def _step(
        self,
        rows: int,
        positions: Tensor,
        places: Tensor,
        metadata: TritonMetadata | GraphMetadata,
        adapters: StepAdapters | None,
    ) -> GpuStep:
        alone = rows == 1 and self._collective is None and adapters is None

        def mix(q: Tensor, layer: KVLayer) -> Tensor:
            return self._attention.mix(q, layer, metadata.of(layer, places)[0])

        def write(k: Tensor, v: Tensor, layer: KVLayer) -> None:
            self._attention.write(k, v, layer, *metadata.of(layer, places), pdl=False)

        def attend(index: int, q: Tensor, k: Tensor, v: Values) -> Tensor:
            layer = self._layers[index]
            return self._attention.attend_plainly(q, k, v, layer, *metadata.of(layer, places))

        return GpuStep(
            positions=positions,
            rope=self.model.rope,
            local_rope=self.model.local_rope,
            attend=attend,
            places=places,
            layers=self._layers,
            write=write,
            mix=mix,
            states=lambda: metadata.states,
            places_of=lambda layer: metadata.of(layer, places)[1],
            expands=lambda layer, up: metadata.expansion(layer.spec, up) is not None,
            tally=None if (tally := self.model.tally) is None else tally._replace(places=places),
            single=alone and all(map(self._takes_single, self.model.blocks)),
            pdl=self.pdl(rows),
            adapters=adapters,
        )

    def _takes_single(self, block: Block) -> bool:
        return block.takes_single and all(part.takes_single(self._gpu) for part in block.parts)

    def _different_blocks(self) -> list[Block]:
        """The first blocks that have every pair of neighbors, and the last block.

        They launch every kernel of a step.
        """
        blocks, kinds = self.model.blocks, [*map(self._kind, range(len(self.model.blocks)))]
        pairs = [*pairwise([None, *kinds])]
        latest = max(pairs.index(pair) for pair in set(pairs))
        chosen = {*range(latest + 1), len(blocks) - 1}
        return [blocks[index] for index in sorted(chosen)]

    def _kind(self, index: int) -> Hashable:
        """What the kernels of a block depend on."""
        block = self.model.blocks[index]
        shapes = [(each.shape, each.dtype) for each in chain(block.parameters(), block.buffers())]
        tapped = block.index in self.model.taps  # what it reads has been added up
        return self._layers[index].spec, tapped, *map(type, block.modules()), *shapes

    def _blocks(self, wait: Callable[[int], None] | None) -> Iterator[Block]:
        for block in self.model.blocks:
            if wait is not None:
                wait(block.index)
            yield block

    def _adapted(self, x: Tensor, step: GpuStep, wait: Callable[[int], None] | None) -> Tensor:
        for block in self._blocks(wait):
            block.forward(x, step)
        return self.model.ended(x)

    def _through(self, part: Part, norm: nn.Module | None, x: Residual, step: GpuStep) -> Residual:
        """`norm`: of the part's term."""
        gpu = self._gpu if step.adapters is None else AdaptedKernels(self._gpu, part, step.adapters)
        if (found := part.fused(x, step, gpu)) is not None:
            if norm is not None:
                found.norm_term(norm)
            return found
        self._count(part)
        stream = x.total()
        x.add(x.scaled(part.forward(stream, step)), norm)
        return x

    def _plain(self, block: Block, x: Residual, step: GpuStep) -> Residual:
        self._count(block)
        stream = x.total()
        block.forward(stream, step)
        return x

    def _count(self, plain: nn.Module) -> None:
        name = type(plain).__name__
        if not self.plain[name]:
            logger.warning("%s has no kernels for this step; running its plain forward", name)
        self.plain[name] += 1
