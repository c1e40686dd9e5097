"""The event log of the engine."""

from dataclasses import replace

import pytest
from textual.widgets import Input

from engine.api import events
from engine.api.events import Event
from engine.fleet.fleet import NUMBERS
from minichat.ui.monitor import EventLog, MonitorPanel
from minichat.ui.monitor.figures import clock_time
from minichat.ui.monitor.words import described
from tests.cases import case
from tests.widgets.monitor.snapshots import OWNERS, snapshot
from tests.widgets.monitor.stage import lines, staged


def log() -> EventLog:
    return EventLog(ascii=True, clock=lambda: 1_700_000_000.0)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (events.Queued(1, 0, 3, 120), ("queued", "prompt of 120 tokens")),
        (events.Queued(1, 0, 3, 120, 8), ("queued", "prompt of 120 + 8 tokens")),
        (events.Admitted(1, 0, 3, 32), ("admitted", "32 tokens from the cache")),
        (events.Admitted(1, 0, 3, 0), ("admitted", "nothing cached")),
        (
            events.Admitted(1, 0, 3, 96, "disk", 96, True),
            ("admitted", "96 tokens from the cache, 96 loaded from disk"),
        ),
        (
            events.Admitted(1, 0, 3, 96, "disk", 96, True, 0.02),
            ("admitted", "96 tokens from the cache, 96 loaded from disk (loading about 20 ms)"),
        ),
        (
            events.Admitted(1, 0, 3, 0, "disk", 96, False, 0.02, 0.01),
            (
                "admitted",
                "0 tokens from the cache, 96 computed, not loaded from disk"
                " (loading about 20 ms, computing 10 ms)",
            ),
        ),
        (events.Preempted(1, 0, 3, False, 12), ("preempted", "gave up 12 blocks")),
        (events.Preempted(1, 0, 3, True, 1, "host"), ("swapped", "1 block to host")),
        (events.Preempted(1, 0, 3, True, 12, "disk"), ("swapped", "12 blocks to disk")),
        (events.Resumed(1, 0, 3, True, 0), ("resumed", "with its stored blocks")),
        (events.Resumed(1, 0, 3, False, 64), ("resumed", "64 tokens from the cache")),
        (events.Transferred(1, 0, 3, "host", False, 4, 0.002, ""), ("stored", "4 blocks to host, 2.0 ms")),
        (events.Transferred(1, 0, 3, "host", True, 1, 0.002, ""), ("loaded", "1 block from host, 2.0 ms")),
        (
            events.Transferred(1, 0, 3, "disk", True, 4, 0.0, "OSError: gone"),
            ("failed", "4 blocks, tier disk: OSError: gone"),
        ),
        (events.Copied(1, 0, 3, 12, 31), ("copied", "shared block 12 to 31")),
        (events.Forked(1, 0, 3, 2, 9), ("forked", "from 2, shares 9 blocks")),
        (events.Forked(1, 0, 3, 2 * NUMBERS + 7, 9), ("forked", "from 2/7, shares 9 blocks")),
        (events.FirstToken(1, 0, 3, 0.092), ("first", "token after 92 ms")),
        (events.Updated(1, 0, 3, ("top_p", "seed")), ("changed", "top_p, seed")),
        (events.Finished(1, 0, 3, "length", 214, ""), ("finished", "length, 214 tokens")),
        (
            events.Finished(1, 0, 3, "failed", 2, "no\x1b[2J\nroom"),
            ("failed", "after 2 tokens: no\x1b[2J\nroom"),
        ),
        (events.StepBroke(1, 0, "bad", (1, 2)), ("failed", "a step with 2 requests: bad")),
        (events.Died(1, 0, "gone"), ("died", "gone")),
        (events.Evicted(1, 0, 3, 12), ("evicted", "12 cached blocks")),
        (
            events.TierProblem(1, 0, "disk", "/kv: No space left on device"),
            ("tier off", "disk: /kv: No space left on device"),
        ),
        (events.TierProblem(1, 0, "disk", ""), ("tier back", "disk stores blocks again")),
        (
            events.Quantized(1, 0, "int4", "none", 64, 1.25, ""),
            ("switched", "weights none to int4 in 1.25 s, 64 blocks"),
        ),
        (
            events.Quantized(1, 0, "int4", "none", 64, 1.25, "it was canceled"),
            ("failed", "weights to int4: it was canceled; still none"),
        ),
        (events.Recached(1, 0, "int8", 128), ("switched", "cache to int8, 128 blocks")),
        (events.AdapterChanged(1, 0, "sql", True), ("adapter", "sql loaded")),
        (events.AdapterChanged(1, 0, "sql", False), ("adapter", "sql dropped")),
        (
            events.PromptRouted(1, 0, 3, 2, 41, 48, 41),
            ("routed", "to replica 2: 41 of 48 blocks are there"),
        ),
        (events.PromptRouted(1, 0, 3, 0, 1, 2, 1), ("routed", "to replica 0: 1 of 2 blocks is there")),
        (
            events.PromptRouted(1, 0, 3, 2, 1041, 1048, 1041),
            ("routed", "to replica 2: 1,041 of 1,048 blocks are there"),
        ),
        (events.PromptRouted(1, 0, 3, 0, 0, 0, 0), ("routed", "to replica 0: less than a block")),
        (
            events.PromptSent(1, 0, 3, 0, 48, 41, 0.12),
            ("prompt", "on engine 0: 41 of 48 blocks sent in 120 ms"),
        ),
        (
            events.PromptSent(1, 0, 3, 0, 48, 41, 0.12, way="gpu"),
            ("prompt", "on engine 0: 41 of 48 blocks sent from GPU to GPU in 120 ms"),
        ),
        (
            events.PromptSent(1, 0, 3, 0, 48, 41, 0.12, way="host"),
            ("prompt", "on engine 0: 41 of 48 blocks sent through host memory in 120 ms"),
        ),
        (
            events.PromptSent(1, 0, 3, 0, 48, 0, 0.12, way="gpu"),
            ("prompt", "on engine 0: 0 of 48 blocks sent in 120 ms"),
        ),
        (
            events.PromptSent(1, 0, 3, 0, 48, 0, 0.12, "it was killed"),
            ("failed", "prompt on engine 0, now on its own: it was killed"),
        ),
        (events.ReplicaChanged(1, 0, 1, "ready", ""), ("replica", "1 is ready")),
        (events.ReplicaChanged(1, 0, 1, "dead", "gone"), ("replica", "1 is dead: gone")),
    ],
)
def test_every_event_in_words(event: Event, words: tuple[str, str]) -> None:
    assert described(event) == words


async def test_a_change_of_quantization_is_one_line() -> None:
    pane = log()
    async with staged(pane, (60, 4), focus=False) as pilot:
        pane.update_from(snapshot(64), OWNERS)
        for layer in range(8):
            pane.add(events.Quantizing(1, 0.0, "int8", layer, 8))
        pane.add(events.Quantized(2, 0.0, "int8", "none", 64, 0.5, ""))
        await pilot.pause()
        assert lines(pane)[0].split() == ["5", "events", "1"]


async def test_a_new_engine_leaves_the_letters_of_earlier_events() -> None:
    """It counts requests from the start, so the same numbers soon belong to other chats."""
    pane = log()
    async with staged(pane, (60, 4), focus=False) as pilot:
        pane.add(events.Queued(1, 0.0, 3, 5))
        pane.keep_owners(OWNERS)
        pane.update_from(snapshot(64), {3: OWNERS[0]})
        pane.add(events.Queued(2, 0.0, 3, 5))
        await pilot.pause()
        assert [line.split()[1:3] for line in lines(pane)[1:3]] == [["D", "3"], ["A", "3"]]
        pane.filter()
        pane.query_one(Input).value = "d"
        await pilot.pause()
        assert lines(pane)[0].split()[2:5] == ["1", "of", "2"]


async def test_the_time_of_an_event_is_right_after_the_machine_has_slept() -> None:
    """The engine's clock stands meanwhile."""
    now = [1_700_000_000.0]
    panel = MonitorPanel(ascii=True)
    pane = panel.event_log
    pane.clock = lambda: now[0]
    async with staged(panel, (60, 60), focus=False) as pilot:
        panel.add_event(events.Queued(1, 100.0, 3, 5))
        now[0] += 8 * 3600
        panel.update_from(snapshot(64, at=101.0), OWNERS)
        panel.update_from(replace(snapshot(64, at=3.0), state="restarting"), OWNERS)
        panel.add_event(events.Queued(2, 101.5, 4, 5))
        await pilot.pause()
        assert [line.split()[0] for line in lines(pane)[1:3]] == [
            clock_time(1_700_000_000.0),
            clock_time(now[0] + 0.5),
        ]


async def test_a_late_snapshot_does_not_move_the_times_of_events() -> None:
    """As of a server that did not answer for a while."""
    now = [1_700_000_000.0]
    panel = MonitorPanel(ascii=True)
    pane = panel.event_log
    pane.clock = lambda: now[0]
    async with staged(panel, (60, 60), focus=False) as pilot:
        panel.add_event(events.Queued(1, 100.0, 3, 5))
        for late, seconds in ((17.0, 17.0), (0.0, 17.5), (0.0, 40.0), (0.0, 40.5)):
            now[0] = 1_700_000_000.0 + seconds
            clock = 100.0 + seconds if seconds < 20 else 83.0 + seconds  # the machine sleeps for 17 s
            panel.update_from(snapshot(64, at=clock - late), OWNERS)
            panel.add_event(events.Queued(2, clock, 4, 5))
        await pilot.pause()
        times = (0, 17, 17.5, 23, 40.5)
        assert [line.split()[0] for line in lines(pane)[1:6]] == [
            clock_time(1_700_000_000.0 + each) for each in times
        ]


async def test_a_fleets_requests_have_the_names_of_the_queues() -> None:
    pane = log()
    async with staged(pane, (60, 4), focus=False) as pilot:
        pane.add(events.Queued(1, 0.0, NUMBERS + 12, 5))
        pane.add(events.Queued(1, 0.0, 2**32 + 12, 5))
        await pilot.pause()
        assert [line.split()[2] for line in lines(pane)[1:3]] == ["1/12", "12"]
        pane.filter()
        pane.query_one(Input).value = "1/12"
        await pilot.pause()
        assert lines(pane)[0].split()[2:5] == ["1", "of", "2"]


async def test_the_newest_event_is_at_the_end() -> None:
    pane = log()
    async with staged(pane, (60, 4), focus=False) as pilot:
        pane.update_from(replace(snapshot(64), finished=0), OWNERS)
        assert "no events yet" in lines(pane)[1]
        for number in range(5):
            pane.add(events.Admitted(number, 12.0, number, 32))
        pane.add(events.Died(6, 13.5, "gone"))
        await pilot.pause()
        shown = lines(pane)
        assert shown[0].split() == ["5", "events", "6"]
        assert [line[10:] for line in shown[1:]] == [
            "D    3  admitted  32 tokens from the cache".ljust(50),
            "E    4  admitted  32 tokens from the cache".ljust(50),
            "        died      gone".ljust(50),
        ]
        clock = [line[1:9] for line in shown[1:]]
        assert clock[0] == clock[1] < clock[2]


async def test_times_of_usual_moves_are_not_cut() -> None:
    """The pane is this wide in a terminal of 120 columns, and fills it when it is maximized."""
    for width, event, end in (
        (49, events.Transferred(1, 0, 3, "disk", False, 104, 0.0025, ""), "104 blocks to disk, 2.5 ms"),
        (49, events.Transferred(1, 0, 3, "disk", False, 4, 0.00066, ""), "4 blocks to disk, 0.66 ms"),
        (49, events.Transferred(1, 0, 3, "disk", True, 34, 0.065, ""), "34 blocks from disk, 65 ms"),
        (120, events.Admitted(1, 0, 3, 1544, "disk", 1544, True, 0.008, 0.455), "computing 455 ms)"),
    ):
        pane = log()
        async with staged(pane, (width, 4), focus=False) as pilot:
            pane.add(event)
            await pilot.pause()
            with case(end):
                assert lines(pane)[1].rstrip().endswith(end)


async def test_after_scrolling_up_the_position_is_kept() -> None:
    pane = log()
    async with staged(pane, (40, 4)) as pilot:
        pane.update_from(snapshot(64), OWNERS)
        for number in range(10):
            pane.add(events.Queued(number, 0.0, 1, number))
        await pilot.pause()
        await pilot.press("up", "up")
        before = lines(pane)[1:]
        assert "of 7 tok" in before[-1]
        for number in range(10, 15):
            pane.add(events.Queued(number, 0.0, 1, number))
        await pilot.pause()
        assert lines(pane)[1:] == before
        assert "7 more, End to follow" in lines(pane)[0]
        await pilot.press("end")
        assert "of 14 to" in lines(pane)[-1]
        pane.add(events.Queued(16, 0.0, 1, 99))
        await pilot.pause()
        assert "of 99 to" in lines(pane)[-1]


async def test_filters_by_letter_and_words() -> None:
    pane = log()
    async with staged(pane, (60, 6)) as pilot:
        pane.update_from(snapshot(64), OWNERS)
        for number in range(3):
            pane.add(events.Queued(1, 0.0, number, 5))
            pane.add(events.Admitted(1, 0.0, number, 0))
        pane.filter()
        await pilot.press("b", "space", *"admit")
        assert pane.pattern == "b admit"
        assert "1 of 6" in lines(pane)[0]
        assert "B" in lines(pane)[1]
        assert "admitted" in lines(pane)[1]
        await pilot.press("enter")
        assert pilot.app.focused is pane
        pane.add(events.Admitted(2, 0.0, 1, 9))
        pane.add(events.Admitted(2, 0.0, 2, 9))
        await pilot.pause()
        assert "2 of 8" in lines(pane)[0]
        await pilot.press("escape")
        assert pane.pattern == ""
        assert "8" in lines(pane)[0]
        assert not pane.query_one(Input).display


async def test_a_filter_during_a_pause_takes_in_no_newer_events() -> None:
    pane = log()
    async with staged(pane, (60, 6), focus=False) as pilot:
        pane.update_from(snapshot(64), OWNERS)
        pane.add(events.Queued(1, 0.0, 1, 5))
        await pilot.pause()
        pane.pause(True)
        pane.add(events.Queued(2, 0.0, 2, 5))
        pane.filter()
        for pattern, shown in (("queued", "1 of 1"), ("", "1")):
            pane.query_one(Input).value = pattern
            await pilot.pause()
            assert lines(pane)[0].split("  ")[1].strip() == shown
            assert "".join(lines(pane)).count("prompt of") == 1
        pane.pause(False)
        pane.query_one(Input).value = "queued"
        await pilot.pause()
        assert "2 of 2" in lines(pane)[0]


async def test_control_characters_of_an_error_are_not_sent() -> None:
    event = events.Finished(1, 0.0, 3, "failed", 2, "no\x1b[2J\nröom 漢字漢字")
    for ascii, shown in (
        (True, "after 2 tokens: no?[2J r?om ????"),
        (False, "after 2 tokens: no␛[2J röom 漢字漢字"),
    ):
        pane = EventLog(ascii=ascii)
        async with staged(pane, (72, 3), focus=False) as pilot:
            pane.update_from(snapshot(64), OWNERS)
            pane.add(event)
            await pilot.pause()
            assert lines(pane)[1][28:].rstrip() == shown
            assert pane.render_line(1).cell_length == 72


async def test_the_log_is_bounded() -> None:
    pane = log()
    async with staged(pane, (60, 6), focus=False) as pilot:
        pane.update_from(snapshot(64), OWNERS)
        for number in range(2500):
            pane.add(events.Queued(number, 0.0, 1, number))
        await pilot.pause()
        assert lines(pane)[0].split()[:3] == ["5", "events", "2,000"]
        assert "of 2,499 tokens" in lines(pane)[-1]


async def test_a_swap_is_found_as_a_preemption() -> None:
    pane = log()
    async with staged(pane, (60, 6), focus=False) as pilot:
        pane.update_from(snapshot(64), OWNERS)
        pane.add(events.Preempted(1, 0, 3, True, 12, "host"))
        pane.filter()
        pane.query_one(Input).value = "preempt"
        await pilot.pause()
        assert "1 of 1" in lines(pane)[0]


async def test_an_engine_that_ran_before_the_screen_had_events() -> None:
    pane = log()
    async with staged(pane, (60, 4), focus=False):
        pane.update_from(replace(snapshot(64), finished=5), OWNERS)
        assert "no events since this screen began" in lines(pane)[1]
