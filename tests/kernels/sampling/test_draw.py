"""Sampling without a sort, in Triton's interpreter, against the definition in engine/sampling."""

import pytest
import torch
from torch import Tensor

from tests.cases import one_of, soak
from tests.kernels import oracles
from tests.kernels.interpreted import Interpreted

pytest.importorskip("triton", reason="no Triton here")

VOCAB = 2500  # two chunks, the second not full
WARM = {"temperature": 0.8}


def sample_both(
    kernels: Interpreted, logits: Tensor, rows: list[dict[str, float]], **room: int
) -> tuple[list[int], list[int]]:
    """Return the tokens that the kernels sample, and those of the definition."""
    columns = oracles.settings(rows, logits.shape[1])
    filtered = any("top_k" in row or "top_p" in row for row in rows)
    slots = torch.arange(len(rows)).flip(0) + 1
    found = []
    for call in (
        lambda *a, **k: kernels.call("sampling.sample", "sample", *a, **k, **room)[1],
        restore_order,
    ):
        empty = torch.full((len(rows),), -7), torch.full((len(rows) + 2,), -7)
        out, last_ids, *_ = call(*empty, logits, columns, slots, filtered=filtered)
        assert last_ids[slots].tolist() == [max(0, token) for token in out.tolist()]
        assert last_ids[[0, -1]].tolist() == [-7, -7]
        found.append(out.tolist())
    return found[0], found[1]


def restore_order(*given: Tensor, **named: bool) -> tuple[Tensor, ...]:
    oracles.sample(*given, **named)
    return given


def logits_of(rows: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    spread = torch.linspace(0.5, 6, rows)[:, None]
    return (torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * spread).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_plain_rows(kernels: Interpreted, dtype: torch.dtype) -> None:
    rows = [
        {"temperature": heat, "uniform": (7 * n % 10 + 0.5) / 10} for n, heat in enumerate([0.3, 0.8, 1, 2])
    ]
    rows += [
        {"temperature": 0.0},
        {"temperature": 1e-30, "uniform": 0.99},
        WARM | {"min_p": 0.2, "uniform": 0.9},
    ]
    found, expected = sample_both(kernels, logits_of(len(rows), dtype=dtype), rows)
    assert found == expected


@pytest.mark.parametrize("room", [*soak(16384, 1), 64])
def test_filters(kernels: Interpreted, room: int) -> None:
    """With room for all keys, for those of some rows, and for none."""
    rows: list[dict[str, float]] = [
        WARM | {"top_k": 3},
        WARM | {"top_p": 0.5},
        WARM | {"top_k": 40, "top_p": 0.9},
        WARM | {"top_p": 0.95, "min_p": 0.05},
        WARM | {"top_k": 1},
        WARM,
        {"temperature": 0.0, "top_k": 5},
        WARM | {"top_p": 1e-9},
    ]
    draws = torch.rand(len(rows), generator=torch.Generator().manual_seed(1)).double()
    for row, uniform in zip(rows, draws.tolist(), strict=True):
        row["uniform"] = uniform
    found, expected = sample_both(kernels, logits_of(len(rows), 1, torch.float16), rows, room=room)
    assert found == expected


SPREADS = (0.0, 0.5, 4.0, 30.0)


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("spread", one_of(2, SPREADS))
def test_filters_of_any_distribution(kernels: Interpreted, spread: float, every: int) -> None:
    """From equally likely tokens to one with all the mass, up to the last token that a filter keeps.

    By default each filter is tested with one of the distributions.
    """
    kept: list[dict[str, float]] = [{"top_k": k} for k in (1, 2, 19, 20, 21, 400, VOCAB - 1)]
    kept += [{"top_p": p} for p in (0.01, 0.5, 0.9, 0.999, 1 - 1e-7, 1 - 1e-12)]
    kept += [{"top_k": k, "top_p": p} for k in (5, 700) for p in (0.3, 0.99)]
    rows = [{"temperature": 1.0, "uniform": (0.31, 0.99)[n % 2]} | each for n, each in enumerate(kept)]
    rows = rows[SPREADS.index(spread) % every :: every]
    made = torch.Generator().manual_seed(int(spread))
    logits = torch.randn(len(rows), VOCAB, generator=made) * spread
    found, expected = sample_both(kernels, logits, rows)
    assert found == expected


def test_ties_are_kept_together(kernels: Interpreted) -> None:
    """With five tokens tied for third place, top-k 3 keeps them all, and the last can be sampled."""
    logits = torch.full((1, VOCAB), -20.0)
    logits[0, [7, 2300]] = 2.0
    logits[0, [100, 200, 300, 400, 2400]] = 1.0
    for uniform in (0.0, 0.3, 0.6, 0.999999):
        found, expected = sample_both(kernels, logits, [{"temperature": 1.0, "top_k": 3, "uniform": uniform}])
        assert found == expected


def test_rows_with_nan_are_marked(kernels: Interpreted) -> None:
    logits = logits_of(5)
    logits[0, 2000] = torch.nan
    logits[1] = -torch.inf
    logits[2, 3] = torch.inf
    logits[3, 1200:] = -torch.inf  # fine: the other tokens can be sampled
    for filters in ({}, {"top_k": 2}, {"top_p": 0.5}, {"top_k": 900, "top_p": 0.5}):
        rows = [WARM | filters | {"uniform": 0.7}] * 3 + [WARM, {"temperature": 0.0}]
        found, expected = sample_both(kernels, logits, rows)
        assert found == expected
        assert found[:3] == [-1, -1, -1]
