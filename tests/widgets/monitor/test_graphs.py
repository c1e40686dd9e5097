"""Small graphs, and compact numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.events import Switched
from engine.api.snapshot import Snapshot, Throughput
from minichat.plural import plural
from minichat.ui.monitor import MonitorPanel
from minichat.ui.monitor.figures import duration, ranges
from minichat.ui.monitor.graphs import bar, graph, shares
from tests.waiting import until
from tests.widgets.monitor.snapshots import OWNERS, snapshot
from tests.widgets.monitor.stage import lines, staged


def at(decode: float, *, when: float) -> Snapshot:
    return snapshot(64, at=when, rates=Throughput(0.0, decode, 98.0, 5.2, 17.0))


amounts = st.lists(st.floats(0, 1e9), max_size=50)


@given(amounts, st.integers(0, 30), st.integers(1, 5), st.booleans())
def test_a_graph_has_the_requested_size(values: list[float], width: int, height: int, ascii: bool) -> None:
    drawn = graph(values, width, height, ascii=ascii)
    assert [len(line) for line in drawn] == [width] * height
    assert all(line.isascii() == ascii or not line for line in drawn)


def test_braille_fills_from_below_with_the_newest_on_the_right() -> None:
    assert graph([0, 1, 2, 3, 4], 3) == ["⠀⣠⣾"]
    assert graph([1, 8], 1, 2) == ["⢸", "⣸"]


def test_ascii_graphs_rise() -> None:
    assert graph([0, 1, 2, 3, 4], 6, ascii=True) == ["  _.-^"]
    assert graph([1, 8], 2, 2, ascii=True) == [" ^", "_|"]


def test_small_values_are_visible() -> None:
    assert graph([0.001, 100], 2, ascii=True) == ["_^"]


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=6), st.integers(0, 200))
def test_shares_fill_the_bar(parts: list[float], width: int) -> None:
    cells = shares(parts, width)
    assert sum(cells) == (width if sum(parts) > 0 else 0)
    assert all(count == 0 for count, part in zip(cells, parts, strict=True) if part == 0)


def test_a_bar_stays_in_range() -> None:
    assert [bar(share, 4, "#", "_") for share in (-1, 0, 0.5, 1, 9)] == [
        "____",
        "____",
        "##__",
        "####",
        "####",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "-"),
        (0.0004, "0.40 ms"),
        (0.0081, "8.1 ms"),
        (0.0123, "12 ms"),
        (0.92, "920 ms"),
        (1.238, "1.24 s"),
        (0.00096, "0.96 ms"),
        (0.000996, "1.0 ms"),
        (0.00996, "10 ms"),
        (0.9996, "1.00 s"),
        (59.9, "59.90 s"),
        (99.996, "100 s"),
        (1240, "1,240 s"),
        (3599.4, "3,599 s"),
        (3599.6, "1 h"),
        (3720, "1 h 02 min"),
        (90_000, "1 d 1 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_nouns_agree_with_their_counts() -> None:
    assert ranges([3]) == "3"
    assert ranges([566, 7, 8, 9, 565, 12]) == "7..9, 12, 565..566"
    assert ranges(range(0, 10, 2)) == "0, 2, 4, ..."
    assert (plural(1, "block"), plural(1200, "block")) == ("1 block", "1,200 blocks")


async def test_a_change_while_the_engine_idles_is_marked_at_its_own_time() -> None:
    panel = MonitorPanel(ascii=True)
    async with staged(panel, (60, 40)):
        panel.update_from(at(100, when=100.0), OWNERS)
        panel.update_from(at(0, when=101.0), OWNERS)  # the last one: an idle engine is not polled
        panel.add_event(Switched(1, 400.0, "overlap", False))
        assert "overlap off" not in lines(panel.rates)[0], "nothing is known of that time yet"
        panel.update_from(at(100, when=401.0), OWNERS)
        assert lines(panel.rates)[0].rstrip().endswith("overlap off")
        assert "!" in lines(panel.rates)[1][-3:], "a second before the end"


async def test_paused_graphs_stay_as_they_are_whatever_draws_them() -> None:
    panel = MonitorPanel(ascii=True)
    async with staged(panel, (60, 40)) as pilot:
        panel.update_from(at(100, when=100.0), OWNERS)
        panel.focus_first()
        await pilot.press("p")
        shown = lines(panel.rates)
        for second in range(101, 120):
            panel.update_from(at(300, when=second), OWNERS)
        panel.add_event(Switched(1, 118.5, "overlap", False))
        panel.draw()  # as a new request does
        assert lines(panel.rates) == shown
        await pilot.press("p")
        assert any("300 tok/s" in line for line in lines(panel.rates))
        assert "overlap off" in lines(panel.rates)[0]


async def test_panes_shown_during_a_pause_are_of_the_same_moment() -> None:
    panel = MonitorPanel(ascii=True)
    async with staged(panel, (60, 40)) as pilot:
        panel.maximize(1)
        panel.update_from(snapshot(64, step=200, preemptions=1), OWNERS)
        await pilot.press("p")
        panel.update_from(snapshot(64, step=300, preemptions=2), OWNERS)
        panel.maximize(3)
        await until(lambda: "1 preemption " in " ".join(lines(panel.rates)))


async def test_an_engine_that_worked_before_the_screen_was_opened_shows_its_figures() -> None:
    panel = MonitorPanel(ascii=True)
    async with staged(panel, (60, 40)):
        panel.update_from(snapshot(64, rates=Throughput(), finished=0), OWNERS)
        await until(lambda: "no activity yet" in lines(panel.rates)[1])
        panel.update_from(snapshot(64, rates=Throughput(), finished=40), OWNERS)
        await until(lambda: panel.rates.size.height > 2 and "40 done" in " ".join(lines(panel.rates)))
