"""The search for tilings, with steps whose times follow from the tilings."""

from typing import Any

import pytest
from rich.progress import Progress

pytest.importorskip("triton", reason="no Triton here")

from benchmarks.gpu import gpu_tilings
from benchmarks.gpu.gpu_tilings import PARTS, Tilings, search
from engine.kernels.triton.experts import one_row
from engine.kernels.triton.gemm import skinny_gemm
from minichat.bench.harness import Bench


def searched(monkeypatch: pytest.MonkeyPatch, only: tuple[str, ...]) -> tuple[Bench, Tilings]:
    """A product is fastest with eight warps, and gate and up with four turns."""

    def step_ms(engine: Any) -> float:
        warps = skinny_gemm.gemv_tiling(4096, 1024, False).warps
        return 1.0 + 0.01 * (8 - warps) + 0.1 * abs(one_row.gate_up_tiling(9000, 2048).turns - 4)

    monkeypatch.setattr(gpu_tilings, "step_ms", step_ms)
    bench, tilings, nothing = Bench(0, 1, Progress(disable=True), lambda figure: None), Tilings(), object()
    with tilings.in_use():
        search(bench, "tiny", nothing, tilings, 0.001, only)  # type: ignore[arg-type]
    return bench, tilings


def test_the_fastest_options_are_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = skinny_gemm.gemv_tiling
    bench, tilings = searched(monkeypatch, PARTS)
    assert {"product 4096 x 1024", "gate and up"} == tilings.found.keys()
    assert "{'outputs': 4, 'warps': 8}, 'gate and up': {'turns': 4," in capsys.readouterr().out
    medians = {figure.name: figure.median for figure in bench.figures}
    assert min(medians.values()) == pytest.approx(1.0)
    assert medians["tiny, usual"] == medians["tiny, usual, after that"] == pytest.approx(1.16)
    assert skinny_gemm.gemv_tiling is usual


def test_other_parts_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, _ = searched(monkeypatch, ("products",))
    assert not [figure.name for figure in bench.figures if "gate" in figure.name]
