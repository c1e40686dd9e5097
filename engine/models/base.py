"""What the runner may ask of any model."""

from collections.abc import Iterator, Mapping
from typing import Protocol

from torch import Tensor, nn

from engine.api.config import ModelConfig
from engine.attention.base import Attend


class LanguageModel(Protocol):
    """Both calls run under `torch.inference_mode`; all rows' tokens lie end to end, with no batch axis."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def sinks(self) -> Mapping[int, Tensor]:
        """Layers that have a learned score beside their keys: [heads] each, for `KVLayer.sinks`."""

    def parameters(self) -> Iterator[Tensor]: ...

    def buffers(self) -> Iterator[Tensor]: ...

    def modules(self) -> Iterator[nn.Module]: ...

    def forward(self, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """[T] ids at [T] positions -> [T, hidden], the last norm included."""

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, hidden] -> [N, vocab] in float32."""
