"""Which model to load and how, for every loader."""

from dataclasses import dataclass

import torch

from engine.api.config import DTypeName, ModelConfig, ModelPlace
from engine.api.errors import BadInput
from engine.models.find import Progress
from engine.models.layers.collective import Collective


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """A model to load, and the options."""

    place: ModelPlace
    device: torch.device
    dtype: DTypeName = "auto"  # auto: the checkpoint's dtype
    max_context: int | None = None  # None: the model's maximum
    quantization: str = "none"
    dummy: bool = False  # random weights; reads no files
    seed: int = 0  # for random weights
    progress: Progress | None = None
    collective: Collective | None = None  # of the ranks that share the model
    stage: int = 0  # which part of a pipeline, of several `stages`
    stages: int = 1
    mtp: bool = False  # whether to load the head for multi-token prediction

    def dtype_of(self, config: ModelConfig) -> torch.dtype:
        dtype = getattr(torch, config.dtype if self.dtype == "auto" else self.dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype

    def context_of(self, config: ModelConfig) -> int:
        if self.max_context is not None and self.max_context > config.max_context:
            raise BadInput(
                f"max_context is {self.max_context}; {self.place.name} supports at most {config.max_context}"
            )
        return self.max_context or config.usual_context or config.max_context
