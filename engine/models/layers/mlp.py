"""Dense feed-forwards: gated, act(gate) * up, or act(up); then the down projection."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from engine.api.config import DecoderConfig
from engine.kernels import switches
from engine.models.layers.activations import ACTIVATE, gated
from engine.models.layers.build import Build
from engine.models.layers.part import PDL_ROWS, Part, SourceTensor
from engine.models.layers.sharding import COLUMNS, ROWS, WHOLE, segments
from engine.models.layers.step import StepContext

if TYPE_CHECKING:
    from engine.models.layers.gpu import GpuKernels, GpuStep, Residual


class GatedMLP(Part):
    """With any activation."""

    adaptable = ("gate_up", "down")

    def __init__(self, config: DecoderConfig, index: int, build: Build) -> None:
        super().__init__(config, index, build)
        self.width = build.share(config.mlp, "rows of the MLP")
        self.activate = ACTIVATE[config.activation]
        self.norm = build.input_norm(config.hidden)
        self.gate_up = build.linear(config.hidden, 2 * self.width, bias=config.mlp_bias)
        self.down = build.linear(self.width, config.hidden, bias=config.mlp_bias)

    def pieces(self) -> Mapping[str, tuple[SourceTensor, ...]]:
        hidden, names, width = self.hidden, self.names, self.width
        if (joined := names.get("feed_forward.gate_up")) is not None:
            gate_up: tuple[SourceTensor, ...] = (
                SourceTensor(joined, 2 * width, segments((width, ROWS), (width, ROWS))),
            )
        else:
            gate_up = (
                SourceTensor(names["feed_forward.gate"], width, ROWS),
                SourceTensor(names["feed_forward.up"], width, ROWS),
            )
        return {
            "norm": (SourceTensor(names["feed_forward.norm"], hidden, WHOLE),),
            "gate_up": gate_up,
            "down": (SourceTensor(names["feed_forward.down"], hidden, COLUMNS),),
        }

    def forward(self, x: Tensor, step: StepContext) -> Tensor:
        made = self.product("gate_up", self.norm(x), step)
        return self.product("down", gated(self.activate, made), step)


class MultipliedMLP(GatedMLP):
    """The feed-forward of Falcon-H1: factors for the gate and for the term."""

    def __init__(self, config: DecoderConfig, index: int, build: Build) -> None:
        super().__init__(config, index, build)
        self.factors: tuple[float, float] = config.settings["mlp_factors"]

    def forward(self, x: Tensor, step: StepContext) -> Tensor:
        gate, up = self.product("gate_up", self.norm(x), step).chunk(2, dim=-1)
        made = self.activate(gate * self.factors[0]).mul_(up)
        return self.product("down", made, step) * self.factors[1]


class DenseMLP(GatedMLP):
    """With silu, or gelu by tanh, which the GPU kernels compute."""

    pdl = one_term = True

    def fused(self, x: "Residual", step: "GpuStep", gpu: "GpuKernels") -> "Residual | None":
        gate_up, down, rows, pdl = gpu.product(self.gate_up), gpu.product(self.down), len(x.stream), step.pdl
        if self.activate is ACTIVATE["gelu_tanh"] and switches.GELU:
            return x.plus(down, gate_up.geglu(x.normed(self.norm, gpu, pdl=pdl), pdl=pdl), step)
        if self.activate is not ACTIVATE["silu"]:
            return None
        if step.single:
            act = x.norm_gemv(gate_up, self.norm, gpu, gated=True, pdl=pdl)
        elif x.collective is not None and rows == 1 and gate_up.single:
            act = gate_up.gemv(x.normed(self.norm, gpu, pdl=pdl).values, gated=True, pdl=pdl)
        else:
            half, rounded = gate_up.fuses_swiglu(rows), gate_up.rounds(rows)
            given = x.normed(self.norm, gpu, half=half, rounded=rounded, pdl=pdl)
            if down.rounds(rows) and not half:
                return x.plus_rounded(down, gate_up.rounded_swiglu(given, pdl=pdl), step)
            act = gate_up.swiglu(given, pdl=pdl)
        return x.plus(down, act, step)

    def takes_single(self, gpu: "GpuKernels") -> bool:
        return (
            self.activate is ACTIVATE["silu"]
            and gpu.product(self.gate_up).single
            and gpu.product(self.down).single
            and gpu.norm_of(self.norm) is not None
        )

    def gains_by_pdl(self, rows: int, gpu: "GpuKernels") -> bool:
        """Only for our kernels: other libraries' kernels do not let the next one start early."""
        return rows <= PDL_ROWS or gpu.product(self.down).uses_tma(rows)


class UngatedMLP(Part):
    """Two products around an activation."""

    adaptable = ("up", "down")

    def __init__(self, config: DecoderConfig, index: int, build: Build) -> None:
        super().__init__(config, index, build)
        self.width = build.share(config.mlp, "rows of the MLP")
        self.activate = ACTIVATE[config.activation]
        self.norm = build.input_norm(config.hidden)
        self.up = build.linear(config.hidden, self.width, bias=config.mlp_bias)
        self.down = build.linear(self.width, config.hidden, bias=config.mlp_bias)

    def pieces(self) -> Mapping[str, tuple[SourceTensor, ...]]:
        hidden, names = self.hidden, self.names
        return {
            "norm": (SourceTensor(names["feed_forward.norm"], hidden, WHOLE),),
            "up": (SourceTensor(names["feed_forward.up"], self.width, ROWS),),
            "down": (SourceTensor(names["feed_forward.down"], hidden, COLUMNS),),
        }

    def forward(self, x: Tensor, step: StepContext) -> Tensor:
        act = self.activate(self.product("up", self.norm(x), step))
        return self.product("down", act, step)


class Relu2MLP(UngatedMLP):
    """With the square of relu, which the GPU kernels compute."""

    pdl = True

    def fused(self, x: "Residual", step: "GpuStep", gpu: "GpuKernels") -> "Residual | None":
        if not self._squares:
            return None
        up = gpu.product(self.up)
        if step.single:
            made = x.norm_gemv(up, self.norm, gpu, pdl=step.pdl).unsqueeze(0)
        else:
            given = x.normed(self.norm, gpu, rounded=up.rounds(len(x.stream)), pdl=step.pdl)
            made = up.parts_of(given, pdl=step.pdl)
        return x.plus(gpu.product(self.down), gpu.relu2(made, x.stream.dtype, pdl=step.pdl), step)

    def takes_single(self, gpu: "GpuKernels") -> bool:
        products = gpu.product(self.up), gpu.product(self.down)
        return self._squares and all(each.single for each in products) and gpu.norm_of(self.norm) is not None

    @property
    def _squares(self) -> bool:
        return self.activate is ACTIVATE["relu2"]
