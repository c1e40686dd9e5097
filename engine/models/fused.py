"""A decoder's forward on a GPU: the same weights as Decoder.forward, which is its oracle, in fewer launches.

Each part launches its own (layers/): norms take the sum before them along, rotation writes the cache, and
products of a few rows may leave their sums in parts for what reads them next. Where it wins, what follows a
product is part of it. A part without launches of its own runs its plain forward, which waits in full for what
came before it; so does a product or a norm that is not ours.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from engine.attention.triton_backend import GraphMetadata, TritonAttention, TritonMetadata, gpu
from engine.kernels.triton.attention.write import write
from engine.kernels.triton.norm.embed import embed
from engine.kv.store import KVLayer
from engine.models.decoder import Decoder
from engine.models.layers.gpu import GpuKernels, GpuStep, Residual
from engine.models.layers.part import Part

logger = logging.getLogger("minichat.engine")


class FusedDecoder:
    """Reads the decoder's modules at every call, so that weights and products may be replaced."""

    def __init__(self, model: Decoder, layers: Sequence[KVLayer], attention: TritonAttention) -> None:
        self.model, self._layers, self._attention = model, layers, attention
        self._gpu = GpuKernels(gpu(model.embed.device))
        self.plain: Counter[str] = Counter()  # by the name of a part, how often its plain forward ran

    def embed(self, ids: Tensor, slots: Tensor, last_ids: Tensor) -> Tensor:
        """The stream that forward begins with; an id of -1 is what its slot has drawn last."""
        return embed(self.model.embed, ids, slots, last_ids)

    def forward(
        self, x: Tensor, positions: Tensor, places: Tensor, metadata: TritonMetadata | GraphMetadata
    ) -> Tensor:
        """[tokens, hidden] from the embedding (which is overwritten) to after the last norm."""
        step = self._step(len(x), positions, places, metadata)
        patient, residual = replace(step, pdl=False), Residual(x)
        for part in self._parts():
            residual = self._through(part, residual, step if part.pdl else patient)
        return residual.normed(self.model.norm, self._gpu, pdl=step.pdl).values

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, vocab], of the weights' type: what draws from them reads them as they are."""
        parts = self._gpu.product(self.model.head).parts(hidden, pdl=self.pdl(len(hidden)))
        return parts[0] if len(parts) == 1 else parts.sum(0).to(hidden.dtype)

    def pdl(self, tokens: int) -> bool:
        """Whether kernels of such a step start while the one before them ends."""
        return self._gpu.overlaps and self.model.blocks[0].feed_forward.gains_by_pdl(tokens, self._gpu)

    def _step(
        self, rows: int, positions: Tensor, places: Tensor, metadata: TritonMetadata | GraphMetadata
    ) -> GpuStep:
        def mix(q: Tensor, layer: KVLayer) -> Tensor:
            return self._attention.mix(q, layer, metadata)

        def attend(index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            write(self._layers[index], k, v, places, pdl=False)
            return mix(q, self._layers[index])

        return GpuStep(
            positions=positions,
            rope=self.model.rope,
            attend=attend,
            places=places,
            layers=self._layers,
            mix=mix,
            single=rows == 1 and all(part.takes_single(self._gpu) for part in self._parts()),
            pdl=self.pdl(rows),
        )

    def _parts(self) -> list[Part]:
        return [part for block in self.model.blocks for part in block.parts]

    def _through(self, part: Part, x: Residual, step: GpuStep) -> Residual:
        if (found := part.fused(x, step, self._gpu)) is not None:
            return found
        name = type(part).__name__
        if not self.plain[name]:
            logger.warning("%s has no launches of its own for such a step: its plain forward runs", name)
        self.plain[name] += 1
        stream = x.total()
        return Residual(stream.add_(part.forward(stream, step)))
