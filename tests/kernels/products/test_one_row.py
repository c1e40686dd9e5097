"""The three kernels of one row of a mixture of experts, against plain torch."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.cases import case, soak
from tests.kernels.interpreted import Interpreted
from tests.kernels.products.rows import SHAPES, Shape, expected, launched, made

pytest.importorskip("triton", reason="no Triton here")


@pytest.mark.parametrize("name", ["plain", "shared", "clamped", "squared", *soak("turns", "narrow shared")])
def test_one_row(kernels: Interpreted, name: str) -> None:
    shape = SHAPES[name]
    w = made(shape, 1)
    out, normed, logits, act, counts = kernels.run(launched, shape, w, w["x"])
    torch.testing.assert_close(
        normed, F.rms_norm(w["x"], (shape.hidden,), w["norm"], 1e-5), rtol=2e-3, atol=2e-3
    )
    wanted, wanted_logits, ids = expected(shape, w, w["x"], normed)
    torch.testing.assert_close(logits, wanted_logits.expand_as(logits), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out.float(), wanted, rtol=4e-3, atol=4e-3)
    assert act.shape == (shape.chosen * shape.width + shape.shared,)
    assert torch.equal(counts, w["counts"] + torch.bincount(ids, minlength=shape.experts))


def test_a_row_without_a_place_is_not_counted(kernels: Interpreted) -> None:
    w = made(SHAPES["plain"], 1)
    *_, counts = kernels.run(launched, SHAPES["plain"], {**w, "places": w["places"] - 1}, w["x"])
    assert torch.equal(counts, w["counts"])


def test_of_equal_scores_the_first_are_chosen(kernels: Interpreted) -> None:
    w = made(SHAPES["plain"], 1)
    *_, counts = kernels.run(launched, SHAPES["plain"], {**w, "router": w["router"] * 0}, w["x"])
    assert (counts - w["counts"]).tolist() == [1, 1, 1, 0, 0, 0]


def test_a_row_of_nan_chooses_experts_that_exist(kernels: Interpreted) -> None:
    w = made(SHAPES["plain"], 1)
    out, *_, counts = kernels.run(launched, SHAPES["plain"], w, w["x"] * torch.nan)
    assert out.isnan().all() and (counts - w["counts"]).sum() == 3


def test_which_rows_have_these_kernels() -> None:
    from engine.kernels.triton.experts.one_row import pieces, takes_row
    from engine.kernels.triton.experts.route import Routing

    assert [pieces(each) for each in (64, 96, 768, 1408, 2880)] == [
        (64, 1), (32, 3), (256, 3), (512, 3), (1024, 3),
    ]  # fmt: skip
    up, down = torch.empty(128, 1536, 2048, device="meta"), torch.empty(128, 2048, 768, device="meta")
    assert takes_row(up, down, Routing(8)) and takes_row(up, down, Routing(8), 2816)
    assert not takes_row(up, down, Routing(8, groups=4, chosen_groups=2))
    assert not takes_row(up, down.expand(2, -1, -1, -1).flatten(0, 1), Routing(8))
    mixtral = torch.empty(8, 2 * 14336, 4096, device="meta"), torch.empty(8, 4096, 14336, device="meta")
    assert not takes_row(*mixtral, Routing(2))


def test_a_row_of_gate_and_up_fits_in_the_registers_of_its_warps() -> None:
    from engine.kernels.triton.experts.one_row import RowTiling, gate_up_tiling

    shapes = ((8 * 768, 2048), (8 * 1408, 2048), (4 * 2880, 2880), (8 * 1536, 4096), (8 * 2048, 7168))
    assert [gate_up_tiling(*each) for each in shapes] == [
        RowTiling(2, 1, 3), RowTiling(3, 1, 3), RowTiling(2, 2, 2), RowTiling(2, 2, 2), RowTiling(1, 4, 2),
    ]  # fmt: skip


LARGE = {
    "30B-A3B": Shape(128, 8, 2048, 768),
    "gpt-oss": Shape(32, 4, 2880, 2880, gate="clamped", biased=True, normalized=False),
    "DeepSeek-V2-Lite": Shape(64, 6, 2048, 1408, shared=2816, normalized=False),
    "Nemotron": Shape(128, 6, 2688, 1856, shared=3712, gate="relu2", sigmoid=True, scaling=2.5),
}


@pytest.mark.cuda
def test_layers_in_a_graph_on_a_gpu() -> None:
    """Each layer chooses other experts, so one that read scores too early would choose the last ones'."""
    for name, shape in LARGE.items():
        with case(name), torch.inference_mode():
            shape = replace(shape, dtype=torch.bfloat16)
            layers = [made(shape, seed, "cuda") for seed in range(3)]
            x, found = layers[0]["x"].clone(), []

            def run(shape: Shape = shape, layers: Any = layers, x: Tensor = x, found: Any = found) -> None:
                found.clear()
                stream = x
                for w in layers:
                    out, normed, *_ = launched(shape, w, stream, pdl=True)
                    found.append((stream, normed, out))
                    stream = out

            run()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                run()
            for seed in range(40):
                x.copy_(made(shape, 100 + seed, "cuda")["x"] if seed < 8 else x.flip(1))
                graph.replay()
            torch.cuda.synchronize()
            for w, (stream, normed, out) in zip(layers, found, strict=True):
                wanted, *_ = expected(shape, w, stream, normed)
                torch.testing.assert_close(out.float(), wanted, rtol=2e-2, atol=2e-2)
