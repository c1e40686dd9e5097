"""Kinds of dense feed-forwards: what they read from config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.kernels import switches
from engine.models.fields import MOST_WIDTH, Fields
from engine.models.kinds.base import Flag, optional

if TYPE_CHECKING:
    from engine.models.layers.part import Part

# The names of activations in config.json, and those of layers/activations.py.
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """A gated feed-forward that is applied to all tokens."""

    bias: Flag | None = None  # whether all products have a bias
    activation: tuple[str, str] = ("hidden_act", "silu")  # with another default, it may be any activation

    def read(self, fields: Fields, layers: int) -> Mapping[str, Any]:
        activation = activation_of(fields, *self.activation)
        if self._silu and activation != "silu":
            raise fields.unsupported(self.activation[0], "only silu is supported")
        return _widths(fields, self.bias) | {"activation": activation}

    def part(self) -> type[Part]:
        from engine.models.layers import mlp

        return mlp.DenseMLP if self._silu or switches.GELU else mlp.GatedMLP

    @property
    def _silu(self) -> bool:
        """Whether it is always silu, which the GPU kernels compute."""
        return self.activation[1] == "silu"


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseMultiplied(Dense):
    """The feed-forward of Falcon-H1, whose factors are read with those of its state space."""

    def part(self) -> type[Part]:
        from engine.models.layers.mlp import MultipliedMLP

        return MultipliedMLP


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseRounded(Dense):
    """The feed-forward of LFM2: two thirds of the width in config.json, rounded up to a multiple."""

    def read(self, fields: Fields, layers: int) -> Mapping[str, Any]:
        found = Dense.read(self, fields, layers)
        if not fields.flag("block_auto_adjust_ff_dim", True):
            return found
        multiple = fields.whole("block_multiple_of", 256, high=MOST_WIDTH)
        times = optional(fields, "block_ffn_dim_multiplier", 1.0)
        width = int(2 * found["mlp"] / 3)
        if times is not None:
            width = -(-int(times * width) // multiple) * multiple
        if not 0 < width <= MOST_WIDTH:
            raise fields.bad("block_ffn_dim_multiplier", f"must leave a width from 1 to {MOST_WIDTH}")
        return {**found, "mlp": width}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ungated:
    """A feed-forward of two products around an activation."""

    bias: Flag | None = None
    activation: tuple[str, str] = ("hidden_act", "gelu_pytorch_tanh")
    ratio: int = 0  # its width in hidden sizes; 0: config.json has the width

    def read(self, fields: Fields, layers: int) -> Mapping[str, Any]:
        found = {"activation": activation_of(fields, *self.activation)}
        if self.ratio:
            biased = self.bias is not None and self.bias[1]
            width = self.ratio * fields.whole("hidden_size", high=MOST_WIDTH)
            return {"mlp": width, "mlp_bias": biased, **found}
        return _widths(fields, self.bias) | found

    def part(self) -> type[Part]:
        from engine.models.layers import mlp

        return mlp.Relu2MLP if self.activation[1] == "relu2" else mlp.UngatedMLP


def activation_of(fields: Fields, key: str, default: str) -> str:
    name = fields.text(key, default)
    if name not in ACTIVATIONS:
        raise fields.unsupported(key, f"only {', '.join(ACTIVATIONS)} are supported")
    return ACTIVATIONS[name]


def _widths(fields: Fields, bias: Flag | None) -> dict[str, Any]:
    width = fields.whole("intermediate_size", high=MOST_WIDTH)
    return {"mlp": width, "mlp_bias": bias is not None and fields.flag(*bias)}
