"""The plots of `minichat quality` and `minichat bench`: their points, bars, axes and labels."""

from itertools import combinations
from xml.etree import ElementTree

import pytest

from minichat.charts.axes import axis
from minichat.charts.bars import BarChart, SpreadBar, bars_svg
from minichat.charts.characters import Chart, Point, drawn
from minichat.charts.svg import svg

SVG = "{http://www.w3.org/2000/svg}"
SCHEMES = Chart(
    "quality against size",
    "MB of weights",
    "KL",
    (
        Point("none", 13.1, 0.0),
        Point("int8", 8.6, 0.00009),
        Point("int4", 6.3, 0.0031),
        Point("kv-int8", 13.1, 0.00006),
        Point("kv-fp8", 13.1, 0.00015),
        Point("bf16", 13.1, 0.0),
    ),
)


def test_a_narrow_range_begins_at_zero() -> None:
    found = axis([10, 5, 0])
    assert [label for _, label in found.ticks] == ["0", "2", "4", "6", "8", "10"]
    assert [found.place(value) for value in (0, 5, 10)] == [0, 0.5, 1]
    assert all(found.place(float(label)) == pytest.approx(share) for share, label in found.ticks)
    assert found.begins == 0


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([36, 22.55], "0 10 20 30"),
        ([0.3], "0 0.1 0.2 0.3"),
        ([150_000, 15_001], "0 50,000 100,000 150,000"),
        ([16_100, 4_700], "0 5,000 10,000 15,000"),
        ([], "0 0.2 0.4 0.6 0.8 1"),
        ([0, 0], "0 0.2 0.4 0.6 0.8 1"),
    ],
)
def test_tick_labels_are_round_and_in_full(values: list[float], labels: str) -> None:
    assert " ".join(label for _, label in axis(values).ticks) == labels


def test_a_range_over_a_decade_uses_powers_of_ten() -> None:
    found = axis([0.0031, 0.00009])
    assert [label for _, label in found.ticks] == ["0.00001", "0.0001", "0.001", "0.01"]
    assert [share for share, _ in found.ticks] == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert found.place(0.0001) == pytest.approx(1 / 3)
    assert [label for _, label in axis([7, 900_001]).ticks][-2:] == ["100,000", "1,000,000"]


def test_zero_is_separate_below_the_powers_of_ten() -> None:
    found = axis([0, 0.0031, 0.00009])
    assert found.ticks[:2] == ((0, "0"), (0.25, "0.00001"))
    assert (found.place(0), found.begins) == (0, 0.25)


def test_points_are_at_their_positions() -> None:
    chart = Chart("t", "MB", "KL", (Point("one", 10, 0), Point("two & a half", 5, 2), Point("three", 10, 0)))
    lines = drawn(chart).splitlines()
    assert lines[1].startswith("  2 |") and lines[1].index("b") == 5 + 28
    assert lines[7].startswith("  1 |")
    assert lines[13].startswith("  0 |") and lines[13][5 + 54 : 5 + 56] == "ca"
    assert lines[15].split() == ["0", "2", "4", "6", "8", "10"]
    assert lines[16].strip() == "MB"
    assert [line.rsplit("  ", 1)[1] for line in lines[1:4]] == ["a one", "b two & a half", "c three"]
    root = ElementTree.fromstring(svg([chart, chart]))
    texts = [each.text for each in root.iter(f"{SVG}text")]
    assert texts.count("two & a half") == 2
    assert drawn(Chart("empty", "x", "y", ())) and svg([Chart("empty", "x", "y", ())])


def test_schemes_that_differ_by_decades_are_on_different_lines() -> None:
    lines = drawn(SCHEMES).splitlines()[1:14]
    frames = [line[9:65] for line in lines]
    where = {letter: at for at, frame in enumerate(frames) for letter in frame.strip() if letter != " "}
    assert where["c"] < where["e"] < where["b"] < where["a"] == where["f"]
    assert [line[:9] for line in lines if line[0] != " " or "0 :" in line] == ["0.00001 |", "      0 :"]
    assert [line[8] for line in lines] == ["|"] * 10 + [":"] * 3


def test_labels_in_the_svg_do_not_overlap() -> None:
    crowd = tuple(Point(f"scheme-{n}", 5 + n % 3 / 100, 1 + n // 3 / 100) for n in range(24))
    for chart in (SCHEMES, Chart("crowded", "x", "y", crowd)):
        root = ElementTree.fromstring(svg([chart]))
        names = {point.name for point in chart.points}
        texts = [each for each in root.iter(f"{SVG}text") if each.text in names]
        assert len(texts) == len(names)
        rooms = [
            (float(each.attrib["x"]), 7 * len(each.text or ""), float(each.attrib["y"])) for each in texts
        ]
        for (x, width, y), (other, wide, line) in combinations(rooms, 2):
            assert abs(y - line) >= 12.9 or x >= other + wide or other >= x + width
        assert max(y for _, _, y in rooms) < 300


def test_bars_are_as_long_as_their_values() -> None:
    bars = (SpreadBar("a & b", 5, 4, 6, "5 ms"), SpreadBar("c", 10, 10, 10, "10 ms"))
    root = ElementTree.fromstring(bars_svg([BarChart("latency", "ms", bars), BarChart("empty", "s", ())]))
    filled = [each for each in root.iter(f"{SVG}rect") if each.attrib["fill"] != "#ffffff"]
    assert [float(each.attrib["width"]) for each in filled] == pytest.approx([230, 460])
    spreads = [each.attrib["d"] for each in root.iter(f"{SVG}path") if each.attrib.get("stroke-width")]
    assert spreads == ["M184.0 11.0H276.0", "M460.0 33.0H460.0"]
    texts = {each.text for each in root.iter(f"{SVG}text")}
    assert {"a & b", "5 ms", "10 ms", "latency, ms", "empty, s"} <= texts
