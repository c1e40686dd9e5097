"""The compiled norms, gates and rotations of a CPU against exact ones, and the same row among others."""

from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.kernels.cpu.compiled import build, rows
from engine.kernels.cpu.rms_norm import CpuRmsNorm
from engine.models.layers.activations import gated, silu
from engine.models.rope import rotate

WIDTHS = (1, 8, 16, 40, 64, 172)


@pytest.fixture(autouse=True, params=build.ROWS, ids=lambda source: source.needed[-1])
def able(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kernels for each kind of CPU, if this one can run them."""
    if (problem := build.why_not(request.param)) is not None:
        pytest.skip(problem)
    monkeypatch.setattr(build, "rows", lambda: request.param)
    rows._kernels.cache_clear()
    yield
    rows._kernels.cache_clear()


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def close(found: Tensor, exact: Tensor) -> bool:
    """Within a rounding to bfloat16, and the errors of float32."""
    return bool(((found.double() - exact).abs() <= exact.abs() * 2**-8 * 1.01 + 1e-6).all())


def by_torch(monkeypatch: pytest.MonkeyPatch, run: Callable[[], Tensor]) -> Tensor:
    with monkeypatch.context() as patch:
        patch.setattr(rows, "takes", lambda x: False)
        return run()


@given(
    tokens=st.integers(1, 5), heads=st.integers(1, 3), width=st.sampled_from(WIDTHS), by_head=st.booleans()
)
def test_norms_equal_exact_ones(tokens: int, heads: int, width: int, by_head: bool) -> None:
    """Also of heads between other numbers of a token."""
    x = numbers(tokens, heads + 2, width)[:, 1:-1]
    weight = numbers(heads, width, seed=1) if by_head else numbers(width, seed=1)
    found = rows.norm(x, weight.float(), 1e-3)
    wide = x.double()
    exact = wide / (wide.square().mean(-1, keepdim=True) + 1e-3).sqrt() * weight.double()
    assert found.is_contiguous() and close(found, exact)


@given(count=st.integers(1, 5), width=st.sampled_from(WIDTHS), scale=st.sampled_from((1, 30)))
def test_gates_equal_exact_ones(count: int, width: int, scale: int) -> None:
    x = numbers(count, 2 * width) * scale
    gate, up = x.double().chunk(2, -1)
    exact = gate / (1 + (-gate).exp()) * up
    assert close(rows.gated(x), exact) and close(rows.gated(x[:, None]), exact[:, None])


@given(
    tokens=st.integers(1, 5),
    heads=st.integers(1, 3),
    half=st.sampled_from((4, 16, 20, 32)),
    rest=st.sampled_from((0, 8)),
)
def test_rotations_equal_exact_ones(tokens: int, heads: int, half: int, rest: int) -> None:
    x = numbers(tokens, heads + 1, 2 * half + rest)[:, 1:]
    cos, sin = numbers(tokens, 1, 4 * half, seed=1).chunk(2, -1)
    exact = x.double()
    exact[..., : 2 * half] = x[..., : 2 * half].double() * cos.double() + (
        x[..., : 2 * half].roll(half, -1).double() * sin.double()
    )
    found = x.clone()
    rows.rotate(found, cos, sin)
    assert close(found, exact)


def test_other_rows_and_threads_change_no_bit() -> None:
    x, weight, usual = numbers(300, 4, 172), torch.ones(172), torch.get_num_threads()
    angles = numbers(300, 1, 320, seed=1)

    def rotated(x: Tensor, angles: Tensor) -> Tensor:
        x = x.clone()
        rows.rotate(x, *angles.chunk(2, -1))
        return x

    def all_of(part: slice) -> list[Tensor]:
        some = x[part]
        return [rows.norm(some, weight, 1e-6), rows.gated(some.flatten(1)), rotated(some, angles[part])]

    whole = all_of(slice(None))
    for part in (slice(0, 1), slice(7, 12), slice(100, 300)):
        assert all(torch.equal(one, of[part]) for one, of in zip(all_of(part), whole, strict=True)), part
    try:
        torch.set_num_threads(2)
        assert all(map(torch.equal, all_of(slice(None)), whole))
    finally:
        torch.set_num_threads(usual)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_stays_in_its_row(value: float) -> None:
    x = numbers(3, 64)
    clean = rows.norm(x, torch.ones(64), 1e-6), rows.gated(x)
    x[1, 5] = value
    for found, before in zip((rows.norm(x, torch.ones(64), 1e-6), rows.gated(x)), clean, strict=True):
        assert torch.equal(found[::2], before[::2]) and not found[1].isfinite().all()


def test_they_run_in_place_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    x, angles = numbers(3, 2, 64), numbers(3, 1, 128, seed=1)
    norm = CpuRmsNorm(torch.nn.Parameter(numbers(64), requires_grad=False), 1e-6)
    seen = list[str]()

    def noted(name: str) -> Callable[..., object]:
        usual = getattr(rows, name)

        def call(*given: object) -> object:
            seen.append(name)
            return usual(*given)

        return call

    def rotated() -> Tensor:
        own = x.clone()
        rotate(own, *angles.chunk(2, -1))
        return own

    runs = lambda: norm(x), lambda: gated(silu, x.flatten(1)), rotated
    expected = [by_torch(monkeypatch, run) for run in runs]
    for name in ("norm", "gated", "rotate"):
        monkeypatch.setattr(rows, name, noted(name))
    for run, plain in zip(runs, expected, strict=True):
        assert (run().float() - plain.float()).norm() < 1e-2 * plain.float().norm()
    assert seen == ["norm", "gated", "rotate"]
