"""Third-party parts in the fused chain: what runs instead of kernels, and which kernels wait."""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from engine.api.config import DecoderConfig, RopeSpec
from engine.kv.store import KVLayer, KVStore
from engine.models.adapters.products import StepAdapters
from engine.models.adapters.table import AdapterTable
from engine.models.adapters.targets import adapter_targets
from engine.models.decoder import Decoder
from engine.models.layers.mlp import DenseMLP
from tests.kernels.adapted import empty_adapter
from tests.kernels.launches import Record, recorded
from tests.kernels.steps.test_launches import LLAMA, META, QWEN

pytest.importorskip("triton", reason="no Triton here")


class PlainMLP(DenseMLP):
    """A part without launches."""

    pdl = False

    def fused(self, x: Any, step: Any, gpu: Any) -> Any:
        return None

    def takes_single(self, gpu: Any) -> bool:
        return False


class PatientMLP(DenseMLP):
    """A part with launches that does not declare that its kernels wait for the kernel before."""

    pdl = False


class MyNorm(nn.Module):
    """A norm other than RMS norm."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.layer_norm(x, x.shape[-1:], self.weight)


@dataclass
class RecordedRun:
    record: Record
    fused: Any

    @property
    def names(self) -> list[str]:
        return [line.split("(")[0].split(" ")[0] for line in self.record.lines]


def run_changed(
    rows: int,
    change: Any,
    config: DecoderConfig = QWEN,
    adapters: StepAdapters | None = None,
    collective: Any = None,
) -> RecordedRun:
    """Run a step of a decoder whose second block was changed."""
    from engine.attention import graph_work, triton_backend
    from engine.attention.triton_backend import TritonAttention
    from engine.kernels.triton.attention.tiles import GpuLimits
    from engine.models import fused

    facts = GpuLimits(227 * 2**10, overlaps=True)
    with (
        META,
        patch.object(graph_work, "gpu", lambda _: facts),
        patch.object(triton_backend, "gpu", lambda _: facts),
        patch.object(fused, "gpu", lambda _: facts),
    ):
        model = Decoder(config, torch.bfloat16, collective=collective).eval()
        change(model.blocks[1], config)
        store: list[KVLayer] = KVStore(
            model.caches, blocks=64, block_size=16, host_blocks=0, dtype=torch.bfloat16, device=META
        ).layers
        chain = fused.FusedDecoder(model, store, TritonAttention())
        x = torch.empty(rows, config.hidden, dtype=torch.bfloat16)
        positions, places = torch.empty(rows, dtype=torch.int64), torch.empty(rows, dtype=torch.int64)
        with recorded() as record:
            one_group: Any = SimpleNamespace(of=lambda layer, places: (None, places))
            chain.forward(x, positions, places, one_group, adapters)
    return RecordedRun(record, chain)


def as_class(kind: type[DenseMLP]) -> Any:
    def change(block: Any, config: DecoderConfig) -> None:
        block.feed_forward.__class__ = kind

    return change


def own_norm(block: Any, config: DecoderConfig) -> None:
    block.feed_forward.norm = MyNorm(block.feed_forward.norm.weight)


def starts_early(line: str) -> bool:
    return "launch_pdl=True" in line


class SeenAdapters(StepAdapters):
    """Adds nothing, and notes each product it is asked about."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, str, int]] = []

    def add(self, layer: int, product: str, x: Tensor, out: Tensor) -> None:
        self.seen.append((layer, product, out.shape[1]))


@pytest.mark.parametrize("rows", [1, 8])
def test_a_step_with_adapters_of_torch_leaves_the_chain(rows: int) -> None:
    """Every product runs on its own, so that an adapter can add to it, around the attention kernels."""
    adapters = SeenAdapters()
    found = run_changed(rows, lambda *_: None, adapters=adapters)
    spec, hidden = QWEN.layers[0], QWEN.hidden
    joined = (spec.heads + 2 * spec.kv_heads) * spec.key_dim
    widths = {"qkv": joined, "out": hidden, "gate_up": 2 * QWEN.mlp, "down": hidden}
    layers = range(len(QWEN.layers))
    assert adapters.seen == [(layer, name, width) for layer in layers for name, width in widths.items()]
    assert found.fused.plain == {}, "nothing is missing, so doctor has nothing to report"
    assert not any(map(starts_early, found.record.lines))
    assert found.names.count("linear") == 4 * len(QWEN.layers)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_stage_before_the_last_passes_its_stream_on_as_it_is(ranks: int) -> None:
    """It has no head: nothing is scaled or capped as logits, and nothing gathered from its ranks."""
    from engine.attention.triton_backend import TritonAttention
    from engine.models.fused import FusedDecoder

    config = replace(QWEN, after=1, logit_scale=0.5, logit_cap=3.0)
    with META:
        collective: Any = SimpleNamespace(rank=0, ranks=ranks) if ranks > 1 else None
        model = Decoder(config, torch.bfloat16, collective=collective)
    stream = torch.randn(3, config.hidden)
    before = stream.clone()
    passed = FusedDecoder(model, [], TritonAttention()).logits(stream)
    assert torch.equal(passed, before)


def launched(rows: int, products: int, config: DecoderConfig = QWEN) -> StepAdapters:
    """An adapter of the first products of each layer, by kernels, in a step of so many rows."""
    from engine.models.adapters.launched import LaunchedAdapters

    table = AdapterTable(adapter_targets(config).values(), torch.bfloat16, META)
    with META:
        table.put(1, empty_adapter(config, 16, products=products))
        return LaunchedAdapters(table, torch.empty(rows, dtype=torch.int64))


@pytest.mark.parametrize("products", [1, 4])
@pytest.mark.parametrize("rows", [1, 8, 64])
def test_adapters_by_kernels_are_added_around_products_in_the_chain(rows: int, products: int) -> None:
    """And only around products that an adapter has. Each kernel starts early."""
    found = run_changed(rows, lambda *_: None, adapters=launched(rows, products))
    layers, joined = len(QWEN.layers), rows <= 8  # a few rows are multiplied in one launch
    assert found.fused.plain == {}
    assert found.names.count("_skinny_gemm_shrink" if joined else "_shrink") == products * layers
    assert found.names.count("_expand_swiglu") == (layers if products == 4 else 0)
    assert all(map(starts_early, (line for line in found.record.lines if line.startswith("_"))))
    shrinks = [at for at, name in enumerate(found.names) if name.endswith("_shrink")]
    ends = [found.names[at + (1 if joined else 2)] for at in shrinks]  # else the product is in between
    readers = (
        ["_rope_and_cache", "_norm", "_expand_swiglu", "_norm"]
        if joined
        else ["_expand"] * 2 + ["_expand_swiglu", "_expand"]
    )
    assert ends == readers[:products] * layers


@pytest.mark.parametrize("one_launch", [True, False])
@pytest.mark.parametrize("rows", [2, 8])
def test_adapters_of_few_rows_take_no_launch_of_their_own(
    rows: int, monkeypatch: pytest.MonkeyPatch, *, one_launch: bool
) -> None:
    """With large weights, none of these products is fused without adapters."""
    monkeypatch.setattr("engine.models.adapters.launched.ONE_LAUNCH", one_launch)
    usual = run_changed(rows, lambda *_: None, LLAMA)
    found = run_changed(rows, lambda *_: None, LLAMA, launched(rows, 4, LLAMA))
    same = {
        **dict.fromkeys(("_gemm_with_terms", "_skinny_gemm_shrink"), "_skinny_gemm"),
        "_expand_swiglu": "_swiglu",
    }
    assert [same.get(name, name) for name in found.names] == usual.names
    # Of queries, keys and values, and of gate and up. The kernels of norms add the terms of the two others.
    assert found.names.count("_gemm_with_terms") == (2 * len(LLAMA.layers) if one_launch else 0)


@pytest.mark.parametrize(("rows", "products"), [(16, 2), (17, 1), (32, 1), (33, 0)])
def test_which_products_are_in_one_launch_with_their_terms(rows: int, products: int) -> None:
    """With more than 16 rows, gate and up are faster with an activation that adds to them."""
    found = run_changed(rows, lambda *_: None, LLAMA, launched(rows, 4, LLAMA))
    assert found.names.count("_gemm_with_terms") == products * len(LLAMA.layers)


@pytest.mark.parametrize("rows", [1, 8, 64])
def test_a_part_without_launches_runs_in_torch_and_is_counted(rows: int) -> None:
    usual, found = run_changed(rows, lambda *_: None), run_changed(rows, as_class(PlainMLP))
    assert usual.fused.plain == {} and found.fused.plain == {"PlainMLP": 1}
    at = found.names.index("rms_norm")
    assert found.names[at:].count("linear") >= 2 and "silu" in found.names
    before, after = found.record.lines[:at], found.record.lines[at:]
    assert all(map(starts_early, (line for line in before if line.startswith("_"))))
    assert all(map(starts_early, (line for line in after if line.startswith("_"))))
    added = [line.split(" ")[1] for line in found.record.lines if line.startswith("add_ ")]
    assert len(added) == 2 and len(set(added)) == 1, "the pending term, then its own"


@pytest.mark.parametrize("rows", [1, 8, 64])
def test_a_part_without_early_starts_waits_for_the_kernel_before(rows: int) -> None:
    usual, found = run_changed(rows, lambda *_: None), run_changed(rows, as_class(PatientMLP))
    assert found.fused.plain == {} and found.names == usual.names
    changed = [
        (mine, theirs)
        for mine, theirs in zip(found.record.lines, usual.record.lines, strict=True)
        if mine != theirs
    ]
    assert changed and all(starts_early(theirs) and not starts_early(mine) for mine, theirs in changed)
    assert all(
        mine.replace("PDL=False", "PDL=True") == theirs.replace(" launch_pdl=True", "")
        for mine, theirs in changed
    )
    assert len(changed) == {1: 2, 8: 2, 64: 3}[rows], "the products, and the norm before if it is a kernel"


@pytest.mark.parametrize("rows", [1, 8, 64])
def test_a_third_party_norm_is_called(rows: int) -> None:
    found = run_changed(rows, own_norm)
    assert found.fused.plain == {} and found.names.count("layer_norm") == 1
    at = found.names.index("layer_norm")
    assert found.names[at - 1] == "add_", "the whole sum is added before the norm"
    assert found.names[at + 1 :].count("_linear_residual_norm" if rows == 8 else "_norm") >= 1


def test_a_product_is_added_once_and_none_is_lost() -> None:
    from engine.models.layers.gpu import GpuStep, Residual
    from engine.quant.product import ModuleProduct

    def step() -> GpuStep:
        none: Any = None
        return GpuStep(none, none, none, none, (), none, none, none, single=False, pdl=False)

    x, given = torch.ones(2, 4), torch.full((2, 4), 3.0)
    residual = Residual(x).plus(ModuleProduct(nn.Identity()), given, step())
    with pytest.raises(AssertionError, match="would be lost"):
        residual.plus(ModuleProduct(nn.Identity()), given, step())
    assert torch.equal(residual.total(), torch.full((2, 4), 4.0))
    assert torch.equal(residual.total(), torch.full((2, 4), 4.0))


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"family": "gemma2", "embed_scale": 32.0, "activation": "gelu_tanh"}, "NormedTermBlock"),
        ({"family": "olmo2", "qk_norm": False}, "NormedTermBlock"),
        ({"family": "cohere"}, "ParallelBlock"),
    ],
)
def test_a_block_with_another_arrangement_runs_in_torch(
    rows: int, changes: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the cache and attention have kernels there."""
    monkeypatch.setattr("engine.kernels.switches.NORMED_TERMS", False)
    found = run_changed(rows, lambda *_: None, replace(QWEN, **changes))
    blocks = len(QWEN.layers)
    assert found.fused.plain == {name: blocks}
    assert found.names.count("attention") == found.names.count("_write") == blocks
    assert not any(map(starts_early, found.record.lines[:-1]))


def test_scaled_terms_are_part_of_the_kernels() -> None:
    """Only the input of each last product is scaled on its own."""
    found = run_changed(8, lambda *_: None, replace(QWEN, family="granite", residual_scale=0.5))
    assert not found.fused.plain
    assert found.names.count("mul_") == 2 * len(QWEN.layers)


def test_parts_with_other_rotations_or_norms_run_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interleaved or partial rotation, a norm of queries other than RMS norm, an activation."""
    partial = replace(QWEN, family="phi3", qk_norm=False, rope=RopeSpec(theta=1e4, share=0.75))
    assert run_changed(8, lambda *_: None, partial).fused.plain == {"GroupedAttention": len(QWEN.layers)}
    monkeypatch.setattr("engine.kernels.switches.GELU", False)
    gemma = replace(QWEN, family="gemma", qk_norm=False, activation="gelu_tanh")
    assert run_changed(8, lambda *_: None, gemma).fused.plain == {"GatedMLP": len(QWEN.layers)}
    monkeypatch.setattr("engine.kernels.switches.GELU", True)
    gemma = replace(gemma, activation="gelu")
    assert run_changed(8, lambda *_: None, gemma).fused.plain == {"DenseMLP": len(QWEN.layers)}


def test_parts_between_norms_of_their_terms_run_in_torch_if_they_have_no_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engine.kernels.switches.NORMED_TERMS", True)
    olmo = replace(QWEN, family="olmo2", qk_norm=False)
    found = run_changed(8, lambda *_: None, olmo)
    assert found.fused.plain == {"WideNormAttention": len(QWEN.layers)}
    assert found.names.count("attention") == len(QWEN.layers)
