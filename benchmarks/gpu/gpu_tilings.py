"""A step of one row with other tilings of its kernels: each option in turn, of which the fastest is kept.

A kernel alone says little, since each one starts while the kernel before it ends. So the graph of a whole
step is captured again with each option, and replayed. An option is kept if it is faster by `--least` percent;
what follows is measured with it. Contexts have about 612 tokens, so look at longer ones before attention is
changed (gpu_attention and gpu_latents take tiles).
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import torch
from triton.runtime.errors import OutOfResources

from benchmarks.gpu.gpu import decoding, graph_of_a_step, opened, seconds_of
from engine.api.cache_spec import LayerSpec
from engine.execution.runner import ModelRunner
from engine.kernels.triton.attention import tiles
from engine.kernels.triton.experts import one_row
from engine.kernels.triton.experts.one_row import RowTiling
from engine.kernels.triton.gemm import by_head, skinny_gemm
from engine.kernels.triton.gemm.skinny_gemm import ProductTiling
from engine.serving.engine import Engine
from minichat.bench.harness import Bench

PARTS = ("products", "experts", "heads", "attention")
REPLAYS, MOST_HELD = 150, 2**15  # steps of a sample; numbers of a weight that a program holds
USUAL = "usual"
Changes = dict[str, Any]  # fields of a tiling that differ from the usual one


def run(
    bench: Bench, *, shape: tuple[str, ...] = ("0.6B",), least: float = 0.1, only: tuple[str, ...] = PARTS
) -> None:
    if not torch.cuda.is_available():
        raise SystemExit(f"gpu_tilings needs an NVIDIA GPU, and torch {torch.__version__} sees none")
    for name in shape:
        with tempfile.TemporaryDirectory() as folder:
            engine, _ = opened(name, folder)
            tilings = Tilings()
            with tilings.in_use():
                search(bench, name, engine, tilings, least / 100, only)


@dataclass
class Tilings:
    """Replaces the functions that choose tilings, and collects the usual tiling of each kernel of a step."""

    found: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, Changes] = field(default_factory=dict)

    def changed(self, kernel: str, usual: Any) -> Any:
        self.found.setdefault(kernel, usual)
        changes = self.changes.get(kernel, {})
        return usual | changes if isinstance(usual, dict) else replace(usual, **changes)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        product, heads, tokens = skinny_gemm.gemv_tiling, by_head._tile, tiles.for_tokens

        def of_product(outputs: int, inputs: int, gated: bool) -> ProductTiling:
            kernel = f"product {outputs} x {inputs}{', gated' if gated else ''}"
            made: ProductTiling = self.changed(kernel, product(outputs, inputs, gated))
            return made

        def of_heads(rows: int, inputs: int, *given: Any) -> dict[str, int]:
            made = heads(rows, inputs, *given)
            return self.changed(f"by head, {inputs} inputs", made) if rows == 1 else made

        def of_tokens(spec: LayerSpec, rows: int, *given: Any, **named: Any) -> tiles.Tile:
            made = tokens(spec, rows, *given, **named)
            return self.changed("attention", made) if rows == 1 else made

        def of_experts(kernel: str, usual: Callable[..., RowTiling]) -> Callable[..., RowTiling]:
            return lambda *given: self.changed(kernel, usual(*given))

        with ExitStack() as stack:
            for module, name, function in (
                (skinny_gemm, "gemv_tiling", of_product), (by_head, "_tile", of_heads),
                (tiles, "for_tokens", of_tokens),
                (one_row, "gate_up_tiling", of_experts("gate and up", one_row.gate_up_tiling)),
                (one_row, "down_tiling", of_experts("down", one_row.down_tiling)),
            ):  # fmt: skip
                stack.enter_context(patch.object(module, name, function))
            yield


def search(
    bench: Bench, name: str, engine: Engine, tilings: Tilings, least: float, only: tuple[str, ...]
) -> None:
    best = bench.note(f"{name}, {USUAL}", [step_ms(engine) for _ in range(3)], "ms").median
    for kernel, usual in dict(tilings.found).items():
        part = next((part for part, starts in STARTS.items() if kernel.startswith(starts)), "")
        for changes in OPTIONS[part](usual) if part in only else ():
            before = tilings.changes.get(kernel, {})
            tilings.changes[kernel] = before | changes
            label = ", ".join(f"{field} {value}" for field, value in tilings.changes[kernel].items())
            try:
                taken = bench.note(f"{name}, {kernel}: {label}", step_ms(engine), "ms").median
            except OutOfResources as error:
                print(f"{kernel}: {label}: {error}")
                taken = best
            if taken > best * (1 - least):
                tilings.changes[kernel] = before
            else:
                best = taken
    kept, tilings.changes = {key: value for key, value in tilings.changes.items() if value}, {}
    after = bench.note(f"{name}, {USUAL}, after that", [step_ms(engine) for _ in range(3)], "ms").median
    print(f"{name}: {best:.4f} ms instead of {after:.4f}, with {kept or 'the usual tilings'}")


def step_ms(engine: Engine) -> float:
    """The shortest of three samples, with graphs of the current tilings."""
    runner = engine.runner
    assert isinstance(runner, ModelRunner)
    runner.give_back_reserve()
    runner.use_stages(runner._stage, runner._stage)
    try:
        decoding(engine, 1, 400)
        replay = graph_of_a_step(engine).replay
        seconds_of(replay, REPLAYS // 3)
        return min(seconds_of(replay, REPLAYS) for _ in range(3)) * 1e3
    finally:
        while engine.busy:
            engine.step()


def of_product(usual: ProductTiling) -> Iterator[Changes]:
    for outputs in (1, 2, 4, 8):
        for warps in (2, 4, 8):
            held, differs = outputs * usual.inputs, (outputs, warps) != (usual.outputs, usual.warps)
            if differs and 512 * warps <= held <= MOST_HELD:
                yield {"outputs": outputs, "warps": warps}


def of_experts(usual: RowTiling) -> Iterator[Changes]:
    for turns in sorted({max(1, round(usual.turns * share)) for share in (0.5, 0.7, 0.85, 1, 1.2, 1.5, 2)}):
        for stages in (2, 3, 4):
            if (turns, stages) != (usual.turns, usual.stages):
                yield {"turns": turns, "stages": stages}
    yield from ({"warps": warps} for warps in (usual.warps // 2, usual.warps * 2) if warps)


def of_heads(usual: Mapping[str, int]) -> Iterator[Changes]:
    yield from ({"COLUMNS": columns} for columns in (16, 32, 64, 128) if columns != usual["COLUMNS"])


def of_attention(usual: tiles.Tile) -> Iterator[Changes]:
    yield from ({"keys": keys} for keys in (16, 32, 64) if keys != usual.keys)
    yield from ({"warps": warps} for warps in (1, 2, 4, 8) if warps != usual.warps)
    yield from ({"stages": stages} for stages in (2, 3, 4, 6) if stages != usual.stages)
    yield from ({"programs": max(1, int(usual.programs * share))} for share in (0.25, 0.5, 2))
    yield {"fetch": not usual.fetch}


OPTIONS: dict[str, Callable[[Any], Iterator[Changes]]] = {
    "products": of_product, "experts": of_experts, "heads": of_heads, "attention": of_attention,
}  # fmt: skip
STARTS: dict[str, tuple[str, ...]] = {  # of the kernels' names
    "products": ("product",), "experts": ("gate", "down"), "heads": ("by head",), "attention": ("attention",),
}  # fmt: skip
