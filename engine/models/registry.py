"""Which code runs which model_type, and the one call that gives a model ready to run."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from engine.config import DTypeName, ModelConfig, ModelPlace
from engine.errors import BadInput
from engine.kernels.mirrored import MirroredNorm
from engine.kernels.packed import PackedLinear, why_not
from engine.models.base import LanguageModel
from engine.models.config_json import read_config
from engine.models.decoder import Decoder, Linear, Norm
from engine.models.families import FAMILIES
from engine.models.fields import Fields
from engine.models.loader import Progress, load_weights, random_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """How a model is wanted."""

    place: ModelPlace
    device: torch.device
    dtype: DTypeName = "auto"  # auto: the checkpoint's
    max_context: int | None = None  # None: the model's
    dummy: bool = False  # random weights; none are read
    seed: int = 0  # of the random weights
    progress: Progress | None = None

    def dtype_of(self, config: ModelConfig) -> torch.dtype:
        dtype = getattr(torch, config.dtype if self.dtype == "auto" else self.dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype

    def context_of(self, config: ModelConfig) -> int:
        if self.max_context is not None and self.max_context > config.max_context:
            raise BadInput(f"max_context is {self.max_context}; {self.place.name} holds {config.max_context}")
        return self.max_context or config.max_context


Builder = Callable[[Order], LanguageModel]
BUILDERS: dict[str, Builder] = {}


def builds(*model_types: str) -> Callable[[Builder], Builder]:
    """Registers what makes the models of these types."""

    def register(builder: Builder) -> Builder:
        BUILDERS.update(dict.fromkeys(model_types, builder))
        return builder

    return register


@builds(*FAMILIES)
def native(order: Order) -> LanguageModel:
    config = read_config(order.place.folder)
    config = replace(config, max_context=order.context_of(config))
    try:
        with order.device:
            model = Decoder(config, order.dtype_of(config)).eval()
    except RuntimeError as error:
        raise BadInput(f"{order.place.name} does not fit on {order.device}: {error}") from error
    if order.dummy:
        random_weights(model, order.seed)
    else:
        load_weights(model, order.place.folder, order.progress)
    if order.device.type == "cpu":
        pack(model)
    return model


def pack(model: Decoder) -> None:
    """On a CPU: every product over packed weights, one layer after another, and norms in one kernel.

    The embedding stays as it is.
    """
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Linear) and why_not(child.weight) is None:
                setattr(module, name, PackedLinear(child.weight, child.bias))
            elif isinstance(child, Norm):
                setattr(module, name, MirroredNorm(child.weight, child.eps))


def bridged(order: Order) -> LanguageModel:
    # Brings transformers, which the native path never needs.
    from engine.models.bridge.load import load_bridged

    return load_bridged(order)


def load_model(
    place: ModelPlace,
    *,
    device: str | torch.device = "cpu",
    dtype: DTypeName = "auto",
    max_context: int | None = None,
    dummy: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[LanguageModel, ModelConfig]:
    """The model on its device, and its config. What has no native builder goes by way of transformers."""
    order = Order(
        place=place,
        device=torch.device(device),
        dtype=dtype,
        max_context=max_context,
        dummy=dummy,
        seed=seed,
        progress=progress,
    )
    model_type = Fields.read(place.folder / "config.json").text("model_type")
    model = BUILDERS.get(model_type, bridged)(order)
    return model, model.config
