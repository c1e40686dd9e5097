"""Measures how much the weights that a model multiplies with differ from those in its GGUF file."""

import logging
from pathlib import Path

import torch
from torch import nn

from engine.api.config import ModelPlace
from engine.api.events import log
from engine.models.gguf.tensors import GgufTensors, opened_gguf
from engine.models.layers.block import Block

_ROUNDING = 2**-8  # of bfloat16
_INPUTS, _OUTPUTS = 8, 256  # how many of each product are compared


def report_loss(block: Block, place: ModelPlace, scheme: str, dtype: torch.dtype) -> None:
    """Log the loss of a model's weights; as a warning if it is more than bfloat16 rounds away."""
    if (loss := weight_loss(block, place.folder, dtype)) is None:
        return
    name = str(dtype).removeprefix("torch.")
    log.log(
        logging.WARNING if loss > _ROUNDING else logging.INFO,
        "%s: weights in %s (%s) differ from those in the file by %.2g %% of their norm",
        *(place.name, scheme, name, 100 * loss),
    )


@torch.inference_mode()
def weight_loss(block: Block, path: Path, dtype: torch.dtype) -> float | None:
    """Return the norm of the difference over that of the weights, for a sample of one layer's products.

    None if all of them have a bias.
    """
    error = norm = 0.0
    with opened_gguf(path) as tensors:
        for part in block.parts:
            for name in part.adaptable:
                pieces = [(block.named(piece.name), piece.rows) for piece in part.pieces()[name]]
                if any(f"{piece}.bias" in tensors for piece, _ in pieces):
                    continue  # which would be added to the outputs that are compared
                found, exact = _compared(part.get_submodule(name), pieces, tensors, dtype)
                error += float((found - exact).square().sum())
                norm += float(exact.square().sum())
    return (error / norm) ** 0.5 if norm else None


def _compared(
    product: nn.Module, pieces: list[tuple[str, int]], tensors: GgufTensors, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return some of the weights of a product, as it multiplies with them and as the file has them."""
    device = next((each.device for each in (*product.parameters(), *product.buffers())), torch.device("cpu"))
    weights = (f"{name}.weight" for name, _ in pieces)
    exact = [tensors.floats(name, torch.float32, device, _OUTPUTS).float() for name in weights]
    inputs = exact[0].shape[1]
    columns = torch.arange(0, inputs, max(1, inputs // _INPUTS), device=device)[:_INPUTS]
    probes = torch.zeros(len(columns), inputs, dtype=dtype, device=device)
    probes[torch.arange(len(columns)), columns] = 1
    outputs = product(probes).float().T.split([rows for _, rows in pieces])
    return torch.cat([each[:_OUTPUTS] for each in outputs]), torch.cat([each[:, columns] for each in exact])
