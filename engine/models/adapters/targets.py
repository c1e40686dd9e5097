"""The products of a model that adapters can add to, by the module names of a checkpoint."""

from dataclasses import dataclass
from functools import partial

import torch

from engine.api.config import DecoderConfig
from engine.api.errors import UnsupportedModel
from engine.later import without_data
from engine.models.adapters.products import ProductKey
from engine.models.base import LanguageModel
from engine.models.decoder import Decoder, block


@dataclass(frozen=True, slots=True)
class AdapterTarget:
    """A module of a checkpoint: some outputs of a product."""

    product: ProductKey
    inputs: int
    first: int  # of its outputs in the product
    outputs: int
    whole: int  # outputs of the product


def adaptable(model: LanguageModel) -> DecoderConfig:
    """Return the configuration of a model that can have adapters, else raise the reason."""
    if not isinstance(model, Decoder):
        family = model.config.family
        raise UnsupportedModel(f"adapters need a native model family, and {family} runs over transformers")
    if model.collective is not None:
        raise UnsupportedModel("adapters are not supported by a model on several ranks (tp) yet")
    return model.config


def adapter_targets(config: DecoderConfig) -> dict[str, AdapterTarget]:
    """Return every module that adapters can add to, by its name in a checkpoint."""
    found = {}
    for index in range(len(config.layers)):
        shapes = without_data(partial(block, config, index, torch.float32))
        for part in shapes.parts:
            pieces = part.pieces()
            for name in part.adaptable:
                whole, inputs = part.get_parameter(f"{name}.weight").shape
                first = 0
                for piece in pieces[name]:
                    target = AdapterTarget((index, name), inputs, first, piece.rows, whole)
                    found[shapes.named(piece.name)] = target
                    first += piece.rows
    return found
