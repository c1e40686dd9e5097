"""The experts of one layer on a GPU in a CUDA graph: norm, router and products, by rows and by scheme.

Each of LAYERS layers has its own weights, so the GPU's cache holds none of them. The limit is the time that
reading the chosen experts' weights takes at the speed of a device copy. The result is checked against
float32. `--sweep` compares tilings of each product instead.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from triton.runtime.errors import OutOfResources

from benchmarks.gpu.gpu_attention import REPLAYS, copy_speeds
from engine.api.cache_spec import LayerSpec
from engine.api.config import DecoderConfig, ExpertsSpec, RopeSpec
from engine.attention.graph_work import gpu as limits
from engine.kernels.triton.experts.gemv import down_gemv_tiling, gate_up_gemv_tiling
from engine.kernels.triton.experts.stacked import PlainExperts, StackedExperts
from engine.kernels.triton.experts.tiles import expert_tiles
from engine.kernels.triton.gemm.skinny_gemm import ProductTiling
from engine.kernels.triton.gemm.tma_gemm import Tiling
from engine.kernels.triton.precompile import CompilingKernels, start_compiling
from engine.models.decoder import build_of
from engine.models.layers.gpu import GpuKernels, GpuStep, Residual
from engine.models.layers.moe import ClampedMoE, GroupedMoE, MoE, SharedMoE
from engine.models.layers.routed import RoutedExperts
from engine.models.layers.step import ExpertTally
from engine.models.source import finalize
from engine.quant.experts import ExpertsLinear, ExpertsProduct
from engine.quant.fp4 import NUMBERS, Mxfp4Experts, Mxfp4Plain
from engine.quant.packing import MX
from engine.quant.registry import named
from minichat.bench.harness import Bench

LAYERS = 6
PLAIN = (1, 8, 128)  # rows at which plain torch, and counting the tokens of experts, are measured too
EARLY = (64, 128, 256)  # rows at which PDL is measured too, which such steps do not use
WRONG = {"fp8": 8e-2}  # relative error from which on the result is wrong, 2e-2 for other schemes
HEADS = LayerSpec(heads=1, kv_heads=1, key_dim=64, value_dim=64, scale=1.0)


def _config(family: str, hidden: int, experts: ExpertsSpec, **more: Any) -> DecoderConfig:
    return DecoderConfig(
        family=family, dtype="bfloat16", hidden=hidden, layers=(HEADS,), vocab=10, max_context=64, mlp=64,
        norm_eps=1e-6, rope=RopeSpec(theta=1e4), tied=True, experts=experts, **more,
    )  # fmt: skip


SHAPES: dict[str, tuple[type[MoE], DecoderConfig]] = {
    "qwen3-30b": (
        MoE, _config("qwen3_moe", 2048, ExpertsSpec(count=128, chosen=8, width=768, normalized=True)),
    ),
    "gpt-oss-20b": (
        ClampedMoE,
        _config(
            "gpt_oss", 2880, ExpertsSpec(count=32, chosen=4, width=2880, normalized=True), mlp_bias=True,
            settings={"alpha": 1.702, "limit": 7.0},
        ),
    ),
    "deepseek-v2-lite": (
        GroupedMoE, _config("deepseek_v2", 2048, ExpertsSpec(count=64, chosen=6, width=1408, shared=2816)),
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Layers:
    """Layers of experts and what launches them."""

    parts: list[MoE]
    kernels: GpuKernels
    scheme: str

    def step(self, rows: int, *, pdl: bool | None = None) -> GpuStep:
        none: Any = None
        if pdl is None:
            pdl = self.kernels.overlaps and self.parts[0].gains_by_pdl(rows, self.kernels)
        single = rows == 1 and all(part.takes_single(self.kernels) for part in self.parts)
        return GpuStep(none, none, none, none, (), none, none, none, single=single, pdl=pdl)

    def fused(self, x: Tensor, step: GpuStep, layers: int = 0) -> Residual:
        """Run the layers one after another; the last one's term is still to be added."""
        residual = Residual(x)
        for part in self.parts[: layers or None]:
            found = part.fused(residual, step, self.kernels)
            assert found is not None, "no kernels"
            residual = found
        return residual

    def experts(self, part: MoE) -> RoutedExperts:
        found = self.kernels.experts(part.gate_up, part.down, part.spec, part.dtype)
        assert found is not None
        return found

    def choice(self, part: MoE, x: Tensor) -> tuple[Tensor, Tensor]:
        how: dict[str, Any] = {"best": part.best, "sigmoid": part.sigmoid, "bias": part.choice_bias()}
        router, given = part.router, self.normed(part, x)
        return self.experts(part).routed(given, router.weight, router.bias, **how, pdl=False)

    def normed(self, part: MoE, x: Tensor) -> Tensor:
        """Rounded as in `fused`, so that it chooses the same experts."""
        return Residual(x).normed(part.norm, self.kernels, pdl=False).values


def run(
    bench: Bench,
    *,
    shapes: tuple[str, ...] = tuple(SHAPES),
    schemes: tuple[str, ...] = ("none", "int8", "int4", "fp8", "mxfp4"),
    rows: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 2048),
    sweep: bool = False,
) -> None:
    if not torch.cuda.is_available():
        raise SystemExit(f"gpu_experts needs an NVIDIA GPU, and torch {torch.__version__} sees none")
    if unknown := [name for name in shapes if name not in SHAPES]:
        raise SystemExit(f"no shape {unknown[0]!r}; choose from {', '.join(SHAPES)}")
    speed = bench.note("a device copy, read and written", copy_speeds(bench), "TB/s").median
    table = []
    for shape in shapes:
        for scheme in schemes:
            if scheme == "mxfp4" and SHAPES[shape][0] is not ClampedMoE:
                continue  # the other models are not stored in it
            made = layers_of(*SHAPES[shape], scheme, torch.device("cuda"))
            with torch.inference_mode():
                if sweep:
                    sweep_all(bench, f"{shape}, {scheme}", made, rows)
                else:
                    table += [measure(bench, f"{shape}, {scheme}", made, rows, speed)]
            del made
            torch.cuda.empty_cache()
    print(*table, sep="\n")


def layers_of(
    kind: type[MoE],
    config: DecoderConfig,
    scheme: str,
    device: torch.device,
    *,
    dtype: torch.dtype = torch.bfloat16,
    count: int = LAYERS,
) -> Layers:
    parts = []
    for _ in range(count):
        with device, torch.no_grad():
            part = kind(config, 0, build_of(config, dtype)).eval()
            for name, tensor in part.named_parameters():
                tensor.normal_(std=tensor.shape[-1] ** -0.5 if tensor.dim() > 1 else 0.1)
                if name == "norm.weight":
                    tensor.fill_(1)
            if scheme == "mxfp4":
                for each in (part.gate_up, part.down):
                    each.weight.copy_(small_floats(*each.weight.shape))
            finalize(part, Mxfp4Plain("none") if scheme == "mxfp4" else named(scheme))
        parts.append(part)
    return Layers(parts, GpuKernels(limits(device)), scheme)


def small_floats(outputs: int, inputs: int) -> Tensor:
    """Random numbers that mxfp4 holds, about as large as a layer's."""
    exponents = torch.randint(-9, -6, (outputs, inputs // MX))
    numbers = torch.tensor(NUMBERS)[torch.randint(0, len(NUMBERS), (outputs, inputs))]
    return torch.ldexp(
        numbers * (torch.randint(0, 2, numbers.shape) * 2 - 1), exponents.repeat_interleave(MX, 1)
    )


def measure(bench: Bench, name: str, made: Layers, rows: Sequence[int], speed: float) -> str:
    """Note each number of rows: microseconds of a layer, the limit by bytes, the error. Return a line."""
    line = [f"{name}, us:"]
    inputs = {count: inputs_of(made, count) for count in rows}
    compile_all(lambda: [made.fused(x.clone(), made.step(count), 2).total() for count, x in inputs.items()])
    for count, x in inputs.items():
        label, step = f"{name}, {count} rows", made.step(count)
        error = error_of(made, x)
        bench.note(f"{label}, relative error", error, "")
        if not error < WRONG.get(made.scheme, 2e-2):
            raise SystemExit(f"{label}: the result is wrong, with a relative error of {error:.1e}")
        found = bench.note(label, layer_times(bench, made, x, step), "us").median
        least = bytes_read(made, x) / speed / 1e6
        bench.note(f"{label}, of the limit by bytes ({least:.1f} us)", 100 * least / found, "%")
        line.append(f"{count}: {found:.1f} ({100 * least / found:.0f} %)")
        if count in EARLY:
            early = made.step(count, pdl=made.kernels.overlaps)
            bench.note(f"{label}, with PDL", layer_times(bench, made, x, early), "us")
        if count in PLAIN:
            counting = replace(step, tally=tally_of(made, count))
            bench.note(f"{label}, counting", layer_times(bench, made, x, counting), "us")
            bench.note(f"{label}, plain torch", plain_times(bench, made.parts[:2], x, step), "us")
    return " ".join(line)


def tally_of(made: Layers, rows: int) -> ExpertTally:
    part, device = made.parts[0], made.parts[0].router.weight.device
    counts = torch.zeros(1, part.spec.count, dtype=torch.int64, device=device)
    return ExpertTally(counts, torch.arange(rows, device=device))


def layer_times(bench: Bench, made: Layers, x: Tensor, step: GpuStep) -> list[float]:
    return times(bench, lambda: made.fused(x, step).total(), len(made.parts))


def plain_times(bench: Bench, parts: Sequence[MoE], x: Tensor, step: GpuStep) -> list[float]:
    return times(bench, lambda: [part.forward(x, step) for part in parts], len(parts))


def inputs_of(made: Layers, rows: int) -> Tensor:
    """Small numbers, so that terms are not rounded away next to the stream."""
    part = made.parts[0]
    draw = torch.Generator(part.router.weight.device).manual_seed(rows)
    x = torch.randn(rows, part.hidden, generator=draw, device=part.router.weight.device)
    return (x * 1e-3).to(part.dtype)


def compile_all(launches: Callable[[], object]) -> None:
    """Compile what `launches` launches, in parallel."""
    start_compiling(launches).wait()


def error_of(made: Layers, x: Tensor) -> float:
    """The relative error of the first layer."""
    part = made.parts[0]
    expected = oracle(made, part, x)
    found = made.fused(x.clone(), made.step(len(x)), 1).total().float() - x.float()
    return float((found - expected).norm() / expected.norm())


def oracle(made: Layers, part: MoE, x: Tensor) -> Tensor:
    """The layer's term in float32, expert by expert, with the kernels' choice."""
    given = made.normed(part, x).float()
    weights, ids = made.choice(part, x)
    out = torch.zeros_like(given)
    for expert in ids.unique().tolist():
        row, slot = (ids == expert).nonzero(as_tuple=True)
        act = part.gated(multiplied(part.gate_up, expert, given[row]))
        out.index_add_(0, row, multiplied(part.down, expert, act) * weights[row, slot][:, None])
    if isinstance(part, SharedMoE):
        out += multiplied(part.shared_down, 0, part.gated(multiplied(part.shared_gate_up, 0, given)))
    return out


def multiplied(module: nn.Module, expert: int, x: Tensor) -> Tensor:
    """The product in float32 with the numbers that a weight stands for."""
    if isinstance(module, Mxfp4Experts):
        own = (
            None if module.bias is None else module.bias.unflatten(0, (len(module.words), -1))[expert].float()
        )
        return nn.functional.linear(x, module.dequantized(expert), own)
    if isinstance(module, ExpertsProduct):
        module = module.products[expert]
    if isinstance(module, ExpertsLinear):
        weight = module.weight.unflatten(0, (module.experts, -1))[expert]
        bias = None if module.bias is None else module.bias.unflatten(0, (module.experts, -1))[expert]
    else:
        dequantized: Any = getattr(module, "dequantized", None)
        weight = module.weight if dequantized is None else dequantized()
        bias = module.bias
    return nn.functional.linear(x, weight.float(), None if bias is None else bias.float())


def bytes_read(made: Layers, x: Tensor) -> float:
    """Bytes of weights that a layer must read, on average."""
    total = 0.0
    for part in made.parts:
        chosen = len(made.choice(part, x)[1].unique()) / part.spec.count
        for name, child in part.named_children():
            tensors = {id(each): each.nbytes for each in (*child.parameters(), *child.buffers())}
            total += sum(tensors.values()) * (chosen if name in ("gate_up", "down") else 1)
    return total / len(made.parts)


def times(bench: Bench, launches: Callable[[], object], layers: int) -> list[float]:
    """Microseconds of one layer, from replays of a graph with all launches."""
    launches()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launches()
    samples = []
    for _ in range(bench.warmup + bench.repeats):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        for _ in range(REPLAYS):
            graph.replay()
        ended.record()
        ended.synchronize()
        samples.append(began.elapsed_time(ended) * 1e3 / REPLAYS / layers)
    return samples[bench.warmup :]


Launch = Callable[[], object]


def sweep_all(bench: Bench, name: str, made: Layers, rows: Sequence[int]) -> None:
    """Note the fastest tilings of both products, and the usual one, for each number of rows."""
    for count in rows:
        for product in ("gate_up", "down"):
            found = dict(candidates(made, inputs_of(made, count), product))
            ranked = sorted((min(times(bench, launch, LAYERS)), how) for how, launch in found.items())
            for at, (spent, how) in enumerate(ranked):
                if at < 3 or how.startswith("usual"):
                    bench.note(f"{name}, {count} rows, {product}, {at + 1}. {how}", spent, "us")


def fits(compiling: CompilingKernels) -> bool:
    """Whether a tiling takes no more shared memory than there is."""
    try:
        return compiling.wait()
    except OutOfResources:
        return False


def candidates(made: Layers, x: Tensor, product: str) -> Iterator[tuple[str, Launch]]:
    """Launches of one product in all layers, by tiling."""
    experts = [made.experts(part) for part in made.parts]
    choices = [made.choice(part, x) for part in made.parts]
    gate, first = made.kernels.gate(**made.parts[0].gate()), experts[0]
    of: StackedExperts = getattr(first, product)
    pairs, pdl = len(x) * made.parts[0].spec.chosen, made.step(len(x)).pdl
    act = inputs_of(made, pairs)[:, :1].expand(-1, made.parts[0].width).contiguous()

    def one_row(cut: ProductTiling | None) -> None:
        for each, (weights, ids) in zip(experts, choices, strict=True):
            if product == "gate_up":
                each.gate_up.gate_up_gemv(x, ids, gate, pdl=pdl, cut=cut)
            else:
                each.down.down_gemv(act, ids, weights, pdl=pdl, cut=cut)

    def grouped(tall: int, how: Tiling | None) -> Launch:
        tiles = [expert_tiles(ids, first.spec.count, rows=tall, most=of.tallest) for _, ids in choices]

        def launch() -> None:
            for each, own, (weights, _) in zip(experts, tiles, choices, strict=True):
                around: dict[str, Any] = {"gate": gate} if product == "gate_up" else {"pair_weights": weights}
                given = x if product == "gate_up" else act
                getattr(each, product).multiplied(given, own, len(x), how=how, pdl=pdl, **around)

        return launch

    launches: dict[str, Launch] = {"usual, tiles": grouped(0, None)}
    for how in tilings(of, len(x) * first.spec.chosen / first.spec.count):
        launches[str(how)] = grouped(how.rows, how)
    if len(x) == 1 and of.single:
        launches["usual, one row"] = lambda: one_row(None)
        for cut in gemv_tilings(of, product):
            launches[str(cut)] = partial(one_row, cut)
    compiling = {how: start_compiling(launch) for how, launch in launches.items()}
    yield from ((how, launch) for how, launch in launches.items() if fits(compiling[how]))


def tilings(of: StackedExperts, pairs: float) -> Iterator[Tiling]:
    """Tilings for an expert with this many pairs on average."""
    eight = not isinstance(of, PlainExperts)
    talls = [
        tall for tall in (16, 32, 64, 128) if pairs / 4 <= tall <= max(16, 4 * pairs) and tall <= of.tallest
    ]
    units = of.tallest < 128  # of 128 inputs, whose numbers have 4 bits
    for tall in talls:
        for outputs in (16, 32, 64, 128):
            for turn in (128, 256) if units or tall <= 32 else (64, 128):
                for warps, stages in ((1, 3), (2, 3), (2, 4), (4, 3), (4, 4), (8, 3)):
                    held = outputs * tall / 32 / warps
                    if held > 64 or held < 4 or (warps < 4 and not eight and tall > 16):
                        continue
                    if units and (warps > 4 or outputs > 64):
                        continue
                    yield Tiling(tall, outputs, turn, warps=warps, stages=stages)


def gemv_tilings(of: StackedExperts, product: str) -> Iterator[ProductTiling]:
    weight: Tensor = getattr(of, "weight" if isinstance(of, PlainExperts) else "numbers")
    usual = gate_up_gemv_tiling(weight) if product == "gate_up" else down_gemv_tiling(weight)
    turns = (512, 1024, 2048) if product == "gate_up" else (256, 512, 1024)
    for turn in turns:
        for outputs in (1, 2, 4, 8):
            for warps in (1, 2, 4, 8):
                for stages in (3, 8) if product == "down" else (3,):
                    if 8 <= outputs * turn / 32 / warps <= 64:
                        yield replace(usual, outputs=outputs, inputs=turn, warps=warps, stages=stages)
