"""The interface of every model the runner can run."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from engine.api.config import ModelConfig
from engine.attention.base import Attend
from engine.models.decoder import Decoder
from engine.quant.base import Scheme


class ForeignProducts(Protocol):
    """The products of a model that transformers runs. They change only between steps, part by part."""

    @property
    def layers(self) -> Sequence[Any]: ...

    @property
    def source(self) -> "SchemeSource": ...

    def replace(self, part: int, scheme: Scheme) -> None:
        """Make a part in this scheme, from its exact weights: a layer, or after the last one the head."""

    def nbytes(self, scheme: Scheme) -> int:
        """The approximate size of all weights under a scheme."""


class SchemeSource(Protocol):
    """What schemes mean for a model."""

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def scheme(self, name: str) -> Scheme:
        """Raises BadInput if it is not possible."""

    def check(self) -> None:
        """Raise if the exact weights can no longer be read."""

    def of_head(self, scheme: Scheme) -> Scheme: ...


class LanguageModel(Protocol):
    """Both calls run under `torch.inference_mode`. The rows' tokens are concatenated: no batch axis."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def sinks(self) -> Mapping[int, Tensor]:
        """Attention sinks by layer: a learned score per head, [heads], for `KVLayer.sinks`."""

    @property
    def requantizable(self) -> "Decoder | ForeignProducts | None":
        """The model itself, or its products, if they can be made again in another scheme; else None."""

    def parameters(self) -> Iterator[Tensor]: ...

    def buffers(self) -> Iterator[Tensor]: ...

    def modules(self) -> Iterator[nn.Module]: ...

    def forward(self, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """[T] ids at [T] positions -> [T, hidden], after the last norm."""

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, hidden] -> [N, vocab] in float32."""
