"""The list of requests, one per line."""

from dataclasses import replace

from engine.api.speculation import Speculation
from minichat.ui.monitor import Queues
from minichat.ui.panes.keybar import HintsChanged
from tests.widgets.monitor.snapshots import OWNERS, request, snapshot
from tests.widgets.monitor.stage import lines, received, staged

DECODE = request(0, blocks=(0, 1, 2), cached_tokens=32)
PREFILL = request(1, "prefill", (3, 4), launched=64)
WAITING = request(12, "waiting", why="needs 9 blocks, 2 available")
SWAPPED = request(
    3, "swapped", host_blocks=(0, 1), generated=7, why="gave way;\x1b[31m its blocks\nlie elsewhere"
)
ALL = snapshot(64, (DECODE, PREFILL, WAITING, SWAPPED))


async def test_a_line_shows_owner_phase_progress_and_reason() -> None:
    queues = Queues(ascii=True)
    async with staged(queues, (84, 8), focus=False):
        queues.update_from(ALL, OWNERS)
        assert [line.rstrip() for line in lines(queues)] == [
            " 2 queues  2 running  2 waiting",
            "       id phase           done  blk cached why",
            "> A     0 decode        30/512    3     32",
            "* B     1 prefill       64/120    2      0",
            "* M    12 waiting        0/120    0      0 needs 9 blocks, 2 available",
            "* D     3 swapped        7/512    2      0 gave way;?[31m its blocks lie elsewhere",
            "",
            "",
        ]


async def test_forty_columns_show_the_most_important_fields() -> None:
    queues = Queues(ascii=True)
    async with staged(queues, (40, 4), focus=False):
        queues.update_from(ALL, OWNERS)
        assert lines(queues) == [
            " 2 queues  2 running  2 waiting  2 more ",
            "       id phase           done  blk why ",
            "> A     0 decode        30/512    3     ",
            "* B     1 prefill       64/120    2     ",
        ]


async def test_a_busy_server_and_a_long_context_fit_into_the_columns() -> None:
    """A number that is cut would be taken for a smaller one."""
    queues = Queues(ascii=True)
    long = request(12_345, generated=1024, max_len=131_072)._replace(
        blocks=tuple(range(12_500)), cached_tokens=1_234_567
    )
    prompt = long._replace(id=2, phase="prefill", prompt=1_000_000)
    async with staged(queues, (70, 4), focus=False):
        queues.update_from(snapshot(12_500, (long, prompt)), OWNERS)
        assert [line.split() for line in lines(queues)[2:]] == [
            [">", "?", "12345", "decode", "1024/131k", "12k", "1.2M"],
            ["*", "C", "2", "prefill", "149/1.0M", "12k", "1.2M"],
        ]


async def test_large_counts_have_separators() -> None:
    queues = Queues(ascii=True)
    async with staged(queues, (60, 4), focus=False):
        queues.update_from(replace(ALL, running=1024, waiting=2048), OWNERS)
        assert lines(queues)[0].split() == "2 queues 1,024 running 2,048 waiting 3,070 more".split()


async def test_a_request_whose_blocks_are_loading_is_counted() -> None:
    queues = Queues(ascii=True)
    loading = request(4, "swapped", host_blocks=(0,), why="loading its blocks from disk")
    shot = replace(snapshot(64, (DECODE, loading)), running=1, waiting=0, loading=1)
    async with staged(queues, (60, 3), focus=False):
        queues.update_from(shot, OWNERS)
        assert lines(queues)[0].split() == "2 queues 1 running 1 waiting 1 more".split()


async def test_the_gain_of_speculation_of_each_request() -> None:
    queues = Queues(ascii=True)
    speculations = (Speculation("ngram", True, 8, 40, 30, 1.75), Speculation("draft", False, 2, 2), None)
    several = [
        each._replace(speculation=one)
        for each, one in zip((DECODE, PREFILL, WAITING), speculations, strict=True)
    ]
    async with staged(queues, (70, 6), focus=False):
        queues.update_from(snapshot(64, several), OWNERS)
        assert [line.rstrip() for line in lines(queues)][1:5] == [
            "       id phase           done  blk     draft cached why",
            "> A     0 decode        30/512    3  75% 1.8x     32",
            "* B     1 prefill       64/120    2    paused      0",
            "* M    12 waiting        0/120    0                0 needs 9 blocks, ~",
        ]


async def test_drafts_of_unknown_cost_have_a_share_only() -> None:
    queues = Queues(ascii=True)
    several = [
        each._replace(speculation=one)
        for each, one in zip(
            (DECODE, PREFILL), (Speculation("ngram", True, 2, 4, 1), Speculation("ngram")), strict=True
        )
    ]
    async with staged(queues, (70, 6), focus=False):
        queues.update_from(snapshot(64, several), OWNERS)
        assert [line.split()[6:] for line in lines(queues)[2:4]] == [["25%", "32"], ["starting", "0"]]


async def test_a_phase_change_is_highlighted_for_a_while() -> None:
    queues = Queues(ascii=True)
    async with staged(queues, (60, 8), focus=False):
        for _ in range(8):
            queues.update_from(ALL, OWNERS)
        assert not any(line.startswith("*") for line in lines(queues))
        now = snapshot(64, (DECODE, PREFILL._replace(phase="decode", generated=1), WAITING))
        marks = []
        for _ in range(6):
            queues.update_from(now, OWNERS)
            marks.append(lines(queues)[3][:1])
        assert marks == ["*", "*", "*", "*", " ", " "]
        assert "1/512" in lines(queues)[3]


async def test_the_selection_follows_its_request() -> None:
    queues = Queues()
    async with staged(queues, (60, 8)) as pilot:
        queues.update_from(ALL, OWNERS)
        await pilot.press("down", "down")
        assert queues.selected == 12
        queues.update_from(snapshot(64, (WAITING, DECODE)), OWNERS)
        assert queues.selected == 12
        queues.update_from(snapshot(64, (DECODE,)), OWNERS)
        assert queues.selected == 0
        queues.update_from(snapshot(64), OWNERS)
        assert queues.selected is None
        assert "no requests" in lines(queues)[1]
        queues.abort_selected()
        await pilot.pause()
        assert received(pilot, Queues.AbortRequested) == []


async def test_the_selected_line_is_visible() -> None:
    queues = Queues(ascii=True)
    many = snapshot(64, [request(number) for number in range(20)])
    async with staged(queues, (60, 6)) as pilot:
        queues.update_from(many, OWNERS)
        await pilot.press("end")
        assert queues.selected == 19
        assert [int(line[4:9]) for line in lines(queues)[2:]] == [16, 17, 18, 19]
        await pilot.press("up", "up", "up", "up")
        assert [int(line[4:9]) for line in lines(queues)[2:]] == [15, 16, 17, 18]
        await pilot.click(Queues, offset=(5, 4))
        assert queues.selected == 17
        assert "16 more" in lines(queues)[0]


async def test_only_keys_that_work_on_the_selected_request_are_named() -> None:
    queues = Queues()
    async with staged(queues, (60, 8)) as pilot:
        for requests, labels in (
            ((), ["pane", "pause", "faster", "slower", "back"]),
            ((DECODE,), ["select", "abort", "preempt", "pane", "back"]),
            ((PREFILL,), ["select", "abort", "preempt", "pane", "back"]),
            ((WAITING,), ["select", "abort", "pane", "back"]),
        ):
            queues.update_from(snapshot(64, requests), OWNERS)
            await pilot.pause()
            assert [label for _, label in queues.hints] == labels
        assert len(received(pilot, HintsChanged)) == 3
        queues.update_from(snapshot(64, (WAITING, DECODE)), OWNERS)
        await pilot.press("down")
        assert "preempt" in dict(map(reversed, queues.hints))
        assert len(received(pilot, HintsChanged)) == 4
