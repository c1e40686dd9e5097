"""A model family with its own feed-forward, product and norm."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from engine.api.config import DecoderConfig
from engine.models.families import NAMES, Family
from engine.models.fields import MOST_WIDTH, Fields
from engine.models.kinds import Grouped
from engine.models.layers.build import Build
from engine.models.layers.part import Part, SourceTensor
from engine.models.layers.sharding import COLUMNS, ROWS, WHOLE
from engine.models.layers.step import StepContext


class SquaredMLP(Part):
    """A product up, ReLU to a power, and a product down."""

    def __init__(self, config: DecoderConfig, index: int, build: Build) -> None:
        super().__init__(config, index, build)
        self.width = build.share(config.mlp, "rows of the MLP")
        self.power: int = config.settings["power"]
        self.norm = build.norm(config.hidden)
        self.up = build.linear(config.hidden, self.width)
        self.down = build.linear(self.width, config.hidden)

    def pieces(self) -> Mapping[str, tuple[SourceTensor, ...]]:
        return {
            "norm": (SourceTensor(self.names["feed_forward.norm"], self.hidden, WHOLE),),
            "up": (SourceTensor(self.names["feed_forward.up"], self.width, ROWS),),
            "down": (SourceTensor(self.names["feed_forward.down"], self.hidden, COLUMNS),),
        }

    def forward(self, x: Tensor, step: StepContext) -> Tensor:
        out: Tensor = self.down(F.relu(self.up(self.norm(x))) ** self.power)
        return out


class Squared:
    """The fields that the part reads from config.json, and the part's class."""

    def read(self, fields: Fields, layers: int) -> Mapping[str, Any]:
        power = fields.whole("activation_power", 2, high=4)
        return {"mlp": fields.whole("intermediate_size", high=MOST_WIDTH), "settings": {"power": power}}

    def part(self) -> type[Part]:
        return SquaredMLP


class Transposed:
    """A product with a transposed weight."""

    name: ClassVar[str] = "transposed"
    kind: ClassVar[Literal["product"]] = "product"

    def oracle(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)

    def make(self, weight: Tensor, bias: Tensor | None) -> nn.Module:
        return TransposedProduct(weight, bias)


class TransposedProduct(nn.Module):
    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.register_buffer("transposed", weight.T.contiguous())
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        out = x @ self.transposed
        return out if self.bias is None else out + self.bias


class Centered:
    """A norm that also subtracts the mean."""

    name: ClassVar[str] = "centered"
    kind: ClassVar[Literal["norm"]] = "norm"

    def oracle(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.float() - x.float().mean(-1, keepdim=True)
        return (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()).to(x.dtype) * weight

    def make(self, weight: Tensor, eps: float) -> nn.Module:
        return CenteredNorm(weight, eps)


class CenteredNorm(nn.Module):
    def __init__(self, weight: Tensor, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = weight, eps

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, None, self.eps)


SQUARED = Family(
    attention=Grouped(qk_norm=True),
    feed_forward=Squared(),
    names={**NAMES, "feed_forward.up": "mlp.fc1", "feed_forward.down": "mlp.fc2"},
    product="transposed",
    norm="centered",
)
