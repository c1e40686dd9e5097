"""Numbers of an engine elsewhere that are none: NaN and infinity."""

from dataclasses import fields, is_dataclass, replace
from math import inf, nan
from typing import Any

import pytest

from engine.api.snapshot import Load, Quantiles, StepTimes, Throughput
from engine.api.speculation import Speculation
from minichat.ui.monitor import EngineLine, Latency, MonitorPanel
from tests.widgets.monitor.snapshots import OWNERS, request, snapshot
from tests.widgets.monitor.stage import lines, staged

DRAFTS = Speculation(verifications=10, drafted=40, accepted=30, gain=1.4)
SHOT = snapshot(64, [request(1, speculation=DRAFTS)], load=Load(0.5, 100.0, 200.0), speculation=DRAFTS)


def oddly(value: Any, odd: float) -> Any:
    """The value with another number in place of each float."""
    if type(value) is float:
        return odd
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{each.name: oddly(getattr(value, each.name), odd) for each in fields(value)})
    if isinstance(value, tuple):
        parts = [oddly(each, odd) for each in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


@pytest.mark.parametrize("odd", [nan, inf, -inf])
async def test_a_figure_that_is_no_number_is_a_dash(odd: float) -> None:
    panel, line = MonitorPanel(), EngineLine()
    async with staged(panel, (66, 60)) as pilot:
        for shot in (SHOT, oddly(SHOT, odd), replace(oddly(SHOT, odd), at=SHOT.at)):
            panel.update_from(shot, OWNERS)
            await pilot.pause()
        text = [row.rstrip() for pane in panel.panes.values() for row in lines(pane)]
        assert not [row for row in text if "nan" in row or "inf" in row]
        assert {" 3 rates  - steps/s", " batch -  step - tok  prefix hits -"} <= set(text)
        assert any(row.startswith(" engine TTFT p50       -  p99       -  n 42") for row in text)
    async with staged(line, (120, 1)) as pilot:
        for shot in (SHOT, oddly(SHOT, odd)):
            line.update_from(shot, OWNERS)
            await pilot.pause()
        assert "- tok/s" in lines(line)[0]


async def test_phases_of_no_step_are_dashes() -> None:
    latency = Latency(ascii=True)
    async with staged(latency, (62, 6), focus=False):
        latency.update_from(snapshot(64, step_times=StepTimes(), ttft=Quantiles(), itl=Quantiles()), OWNERS)
        assert [line.rstrip() for line in lines(latency)] == [
            " 4 latency  step -",
            " engine TTFT p50       -  p99       -  n 0",
            " next token  p50       -  p99       -  n 0",
            "",
            " P plan - L launch - W wait - C commit -",
            " weights 5.20 GB  cache 1.10 GB  free 20.4 GB",
        ]


async def test_the_other_figures_stay() -> None:
    panel = MonitorPanel()
    async with staged(panel, (66, 60)) as pilot:
        panel.update_from(replace(SHOT, rates=Throughput(nan, 412.0, 98.0, 5.2, 17.0)), OWNERS)
        await pilot.pause()
        text = "\n".join(row for pane in panel.panes.values() for row in lines(pane))
        assert "prefill       - tok/s" in text and "decode      412 tok/s" in text
