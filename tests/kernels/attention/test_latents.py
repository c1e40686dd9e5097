"""Attention over latents by kernels, against the torch backend in float32 on the same numbers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.api.config import RopeSpec
from engine.attention import expansion
from engine.attention.expansion import expands
from engine.models.rope import rope_table, rotate
from tests.cases import soak
from tests.kernels.interpreted import Interpreted
from tests.kernels.latents import DEEPSEEK, SMALL, both, latent_case, layer_of, replayed, spec_of

pytest.importorskip("triton", reason="no Triton here")

TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
DEEPER = [(1, 8000), (1, 1), (1, 700), (5, 2000), (300, 300), (70, 4100)]  # tokens, and their context


def assert_near(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    assert found.dtype is dtype and found.isfinite().all()
    worst = (found.float() - expected).flatten(1).norm(dim=1) / expected.flatten(1).norm(dim=1)  # by token
    assert worst.max() < TOLERANCES[dtype], f"relative error {worst.max():.1e} at token {worst.argmax()}"


@pytest.mark.parametrize(
    ("heads", "rank", "limit", "dtype"),
    [
        (3, 16, {}, torch.float32), (20, 40, {}, torch.float16),
        (3, 16, {"window": 20, "kept": 3}, torch.float32),
        (2, 300, {}, torch.float16),  # two programs merge one head
        *soak((70, 16, {}, torch.float16), (2, 64, {"window": 5}, torch.float16)),
    ],
)  # fmt: skip
def test_equals_the_torch_backend(
    kernels: Interpreted, heads: int, rank: int, limit: dict[str, int], dtype: torch.dtype
) -> None:
    rows, spec = [(1, 70), (1, 1), (3, 40), (9, 9)], spec_of(heads, rank, SMALL, **limit)
    for block_size, programs in ((16, 1), (32, 8)):
        tile = {"programs": programs, "keys": 16}
        found, expected, *caches = kernels.run(both, spec, rows, SMALL, dtype, "cpu", block_size, tile)
        assert_near(found, expected, dtype)
        assert torch.equal(*(each.nan_to_num(7.0) for each in caches))


@pytest.mark.parametrize("rows", [[(1, 30), (1, 5), (20, 20), (12, 40)], *soak([(17, 25)])])
@pytest.mark.parametrize("limit", [{}, *soak({"window": 9, "kept": 2})])
def test_prompts_read_keys_and_values(
    kernels: Interpreted, rows: list[tuple[int, int]], limit: dict[str, int]
) -> None:
    """Beside rows of one token, which read latents."""
    sizes = (4, 2, 3)
    spec = spec_of(3, 16, sizes, **limit)
    batch, _, _, _, up = latent_case(spec, rows, sizes, torch.float32, "cpu")
    assert expands(batch, spec, up, widest=6)
    found, expected, *caches = kernels.run(both, spec, rows, sizes, torch.float32)
    assert_near(found, expected, torch.float32)
    assert torch.equal(*(each.nan_to_num(7.0) for each in caches))


def test_contexts_are_expanded_if_that_takes_fewer_multiplications(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(*rows: tuple[int, int]) -> bool:
        batch, _, _, _, up = latent_case(spec, rows, DEEPSEEK, torch.float16, "cpu")
        return expands(batch, spec, up, widest=widest)

    spec, widest = spec_of(2, 512, DEEPSEEK), 256
    assert not found((1, 400)) and not found((170, 1000)) and found((200, 1000)) and found((400, 400))
    assert found((1, 400), (200, 1000)) and not found((2, 900), (200, 400))
    monkeypatch.setattr(expansion, "MOST", 1000 * 2 * 320 - 1)  # numbers of keys and values
    assert found((400, 400)) and not found((200, 1000))
    widest = 191  # numbers of a key that the kernel reads
    assert not found((400, 400))


@pytest.mark.parametrize(
    ("rows", "cut"), [([(1, 50)], True), ([(1, 9), (1, 40)], True), *soak(([(1, 9), (4, 40), (7, 7)], False))]
)
def test_work_lists_of_a_graph_give_the_same(
    kernels: Interpreted, rows: list[tuple[int, int]], cut: bool
) -> None:
    """Padding tokens, whose place is -1, are not written."""
    found, expected, split = kernels.run(replayed, spec_of(3, 16, SMALL), rows, SMALL, torch.float32)
    assert split == cut
    assert_near(found, expected, torch.float32)


@pytest.mark.parametrize(("tokens", "transposed"), [(3, True), (40, False)])
def test_products_by_head(call: Callable[..., Any], tokens: int, transposed: bool) -> None:
    """With numbers behind those of each head, and a weight within a larger one."""
    rng = torch.Generator().manual_seed(0)
    whole = torch.randn(3, 40, 36, generator=rng).half()
    weight = whole[:, 4:].transpose(1, 2) if transposed else whole[:, 4:]
    x = torch.randn(tokens, 3, 50, generator=rng).half()[..., : weight.shape[1]]
    found, _ = call("gemm.by_head", "by_head", x, weight)
    expected = torch.einsum("thi,hio->tho", x.float(), weight.float())
    torch.testing.assert_close(found.float(), expected, rtol=2e-3, atol=1e-2)


@pytest.mark.parametrize(("tokens", "parts", "interleaved"), [(4, 1, True), (37, 2, False)])
def test_absorbed_queries_and_cells_of_latents(
    call: Callable[..., Any], tokens: int, parts: int, interleaved: bool
) -> None:
    heads, rank, (unrotated, rotated, _) = 5, 20, SMALL
    spec, rng = spec_of(heads, rank, SMALL), torch.Generator().manual_seed(0)
    width = unrotated + rotated
    made = torch.randn(parts, tokens, heads * width + rank + rotated, generator=rng)
    made = made if parts > 1 else made.half()
    queries, latents = made.split_with_sizes((heads * width, rank + rotated), 2)
    keys = torch.full((4, 16, 1, rank + rotated), torch.nan).half()
    weight = torch.randn(heads, unrotated + 10, rank, generator=rng).half()[:, :unrotated]
    norm_weight = torch.randn(rank, generator=rng).half()
    table = rope_table(RopeSpec(theta=1e4, interleaved=interleaved), rotated, 50, torch.float16)
    positions, places = torch.arange(tokens) * 7 % 50, torch.randperm(64, generator=rng)[:tokens]
    places[1] = -1
    given = queries.unflatten(2, (heads, width)), latents, weight, layer_of(spec, keys), norm_weight, 1e-6
    named = {"interleaved": interleaved}
    absorbed, after = call("gemm.by_head", "absorb", *given, table, positions, places, **named)

    cos, sin = table[positions].unsqueeze(1).chunk(2, -1)
    q, cell = queries.sum(0).half().unflatten(1, (heads, width)), latents.sum(0).half()
    turned = q[..., unrotated:].clone()
    rotate(turned, cos, sin, interleaved=interleaved)
    rotate(cell[:, None, rank:], cos, sin, interleaved=interleaved)
    cell[:, :rank] = torch.nn.functional.rms_norm(cell[:, :rank], (rank,), None, 1e-6) * norm_weight
    expected = torch.einsum("thi,hio->tho", q[..., :unrotated].float(), weight.float())
    torch.testing.assert_close(absorbed[..., :rank].float(), expected, rtol=2e-3, atol=1e-2)
    torch.testing.assert_close(absorbed[..., rank:], turned, rtol=2e-3, atol=2e-3)
    flat, written = after[3].keys.view(-1, rank + rotated), places >= 0
    torch.testing.assert_close(flat[places[written]], cell[written], rtol=2e-3, atol=2e-3)
    assert flat.isfinite().all(1).sum() == tokens - 1


@pytest.mark.cuda
@pytest.mark.parametrize("heads", [16, 128])
def test_real_sizes_on_a_gpu(heads: int) -> None:
    spec = spec_of(heads, 512, DEEPSEEK)
    many = [(1, 30 + 61 * n) for n in range(130)]
    for rows in ([(1, 8000)], DEEPER, many):
        found, expected, mine, theirs = both(spec, rows, DEEPSEEK, torch.bfloat16, "cuda")
        assert_near(found, expected, torch.bfloat16)
        assert torch.equal(mine.nan_to_num(7.0), theirs.nan_to_num(7.0))


@pytest.mark.cuda
@pytest.mark.parametrize("heads", [16, 128])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_in_a_graph_on_a_gpu(heads: int, dtype: torch.dtype) -> None:
    spec = spec_of(heads, 512, DEEPSEEK)
    for rows in ([(1, 8000)], [(1, 500 + 300 * n) for n in range(24)], [(1, 800), (7, 2000), (40, 40)]):
        assert_near(*replayed(spec, rows, DEEPSEEK, dtype, "cuda")[:2], dtype)


@pytest.mark.cuda
def test_windows_and_other_sizes_on_a_gpu() -> None:
    rows = [(1, 3000), (1, 90), (40, 900)]
    for rank, sizes, dtype in (
        (256, (64, 32, 64), torch.bfloat16),
        (448, (96, 40, 80), torch.float16),
        (64, (32, 16, 32), torch.float32),
    ):
        for limit in ({}, {"window": 200, "kept": 4}):
            found, expected, *_ = both(spec_of(20, rank, sizes, **limit), rows, sizes, dtype, "cuda")
            assert_near(found, expected, dtype)
