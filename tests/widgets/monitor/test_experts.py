"""The pane of the experts."""

from typing import Any

import numpy as np
import pytest

from engine.api.expert_load import ExpertLoad
from minichat.ui.monitor.experts import Experts
from tests.widgets.monitor.snapshots import OWNERS, snapshot
from tests.widgets.monitor.stage import lines, staged

FIRST = ((4, 4, 4, 4), (0, 16, 0, 0), (8, 0, 8, 0))


def shot(*layers: tuple[int, ...], at: float = 12.0) -> Any:
    counts = np.array(layers, np.int64)
    load = ExpertLoad(tuple(range(2, 2 + len(layers))), counts.shape[1], 2, counts.reshape(-1))
    return snapshot(at=at, experts=load)


def shown(pane: Experts, *shots: Any) -> list[str]:
    for each in shots:
        pane.remember(each)
        pane.update_from(each, OWNERS)
    return [line.rstrip() for line in lines(pane)]


async def test_each_layer_has_a_line_with_its_busiest_expert() -> None:
    pane = Experts(ascii=True)
    async with staged(pane, (60, 6), focus=False):
        heading, *layers = shown(pane, shot(*FIRST))
        assert heading.startswith(" 6 experts  2 of 4  busiest 4.0x the mean ")
        assert heading.endswith("since the start")
        bars = [line[10:47] for line in layers[:3]]
        assert bars == ["." * 37, " " * 10 + "^" * 9 + " " * 18, "^" * 10 + " " * 9 + "^" * 9 + " " * 9]
        assert [line.split()[:2] + line.split()[-2:] for line in layers[:3]] == [
            ["layer", "2", "1.0x", "#0"], ["layer", "3", "4.0x", "#1"], ["layer", "4", "2.0x", "#0"],
        ]  # fmt: skip


async def test_the_last_seconds_count() -> None:
    pane = Experts(ascii=True)
    async with staged(pane, (60, 6), focus=False):
        heading, layer, *_ = shown(pane, shot((9, 0, 0), at=1), shot((9, 0, 4), at=2), shot((9, 2, 4), at=13))
        assert heading.endswith("last 10 s") and layer.endswith("3.0x  #1")
        assert shown(pane, shot((9, 2, 4), at=99)) == [heading, layer, *[""] * 4], (
            "an idle engine changes nothing"
        )
        assert shown(pane, shot((1, 0, 0, 0), at=100))[0].endswith("since the start"), "another model"


async def test_counts_that_start_again_are_those_of_another_engine() -> None:
    pane = Experts(ascii=True)
    async with staged(pane, (60, 6), focus=False):
        before = shot((90, 0, 0), at=1), shot((99, 0, 4), at=2)
        heading, layer, *_ = shown(pane, *before, shot((1, 8, 3), at=3))
        assert heading.endswith("since the start") and layer.endswith("2.0x  #1")


async def test_layers_and_experts_share_lines_and_bars() -> None:
    pane = Experts(ascii=True)
    many = [tuple(3 * (expert == layer) + 1 for expert in range(64)) for layer in range(8)]
    async with staged(pane, (40, 5), focus=False):
        layers = shown(pane, shot(*many))[1:]
        assert [line.split()[0] for line in layers] == ["2-3", "4-5", "6-7", "8-9"]
        assert [line.split()[-1] for line in layers] == ["#0", "#2", "#4", "#6"]
        assert all("^" in line for line in layers)


@pytest.mark.parametrize("size", [(1, 1), (24, 2), (80, 24), (200, 60)])
async def test_lines_fit(size: tuple[int, int]) -> None:
    pane = Experts()
    async with staged(pane, size, focus=False):
        shown(pane, shot(*[tuple(range(128))] * 48))
        assert all(len(line) == size[0] for line in lines(pane))


async def test_a_model_without_experts_has_no_pane() -> None:
    pane = Experts()
    async with staged(pane, (40, 5), focus=False):
        assert "no experts" in shown(pane, snapshot())[1]
        assert pane.useful_lines == 0
        shown(pane, shot(*FIRST))
        assert pane.useful_lines == 4


async def test_a_pause_keeps_the_bars() -> None:
    pane = Experts(ascii=True)
    async with staged(pane, (60, 6), focus=False):
        before = shown(pane, shot((9, 0, 0), at=1), shot((9, 0, 4), at=2))
        pane.pause(True)
        for second in range(3, 30):
            pane.remember(shot((9, second, 4), at=second))
        pane.draw()
        assert [line.rstrip() for line in lines(pane)] == before
        pane.pause(False)
        pane.draw()
        assert "#1" in lines(pane)[1]
