"""What limits the speed of a step, and the panel that explains it."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from textual.containers import VerticalScroll

from engine.api.commands import MeasureSpeeds
from engine.api.errors import EngineError
from engine.api.snapshot import (
    ReplicaView,
    Snapshot,
    StepSplit,
    StepTimes,
    Throughput,
)
from engine.api.speeds import Reads, Speeds
from minichat.clients.fake import FakeBackend
from minichat.features.why.feature import described
from minichat.features.why.speed import explain
from minichat.ui.monitor.pane import ASCII
from tests.app.conftest import Clock, run, snapshot

SPEEDS = Speeds(read=10e9, multiply=100e9)


def shot(
    times: StepTimes, *, rows: float = 1.0, tokens: float | None = None, prefill: float = 0.0, **changes: Any
) -> Snapshot:
    """One GB/100 of float32 weights: 10 ms to read, 0.05 ms to multiply with one row."""
    running = tuple(range(int(rows)))
    attends = ((0, 1007 * rows), (16, 16 * rows))
    rates = Throughput(prefill, 100.0, 100.0, rows, tokens or rows, attends, attends)
    kind = {"reads": Reads(100_000_000, ((0, 1000),)), "rates": rates, "step_times": times, **changes}
    return snapshot(1000, running, **kind)


def test_one_row_is_bound_by_reading_weights() -> None:
    speed = explain(shot(StepTimes(launch=0.0125)), SPEEDS)
    assert speed.memory.share == pytest.approx((100_000_000 + 1007 * 1000) / 0.0125 / 10e9)
    assert speed.arithmetic.amount == 2 * 25_000_000
    assert speed.sentence == (
        "Memory-bound (weights): 1 row uses 81% of the memory bandwidth; "
        "up to about 20 concurrent chats cost almost nothing."
    )


def test_many_rows_share_the_reading_until_compute_dominates() -> None:
    speed = explain(shot(StepTimes(launch=0.0125), rows=15.0), SPEEDS)
    assert speed.sentence.endswith(
        "15 rows use 92% of the memory bandwidth; more concurrent chats slow each other down."
    )
    speed = explain(shot(StepTimes(launch=0.035), rows=30.0, tokens=60), SPEEDS)
    assert speed.sentence == (
        "Compute-bound: 86% of the device's peak; 30 rows share it, and more would slow each other."
    )
    speed = explain(shot(StepTimes(launch=0.035), rows=1.0, tokens=60), SPEEDS)
    assert speed.sentence.endswith("1 row uses it, and more would slow each other.")


def test_long_contexts_add_reading_of_the_cache() -> None:
    long = shot(StepTimes(launch=0.08), reads=Reads(100_000_000, ((0, 500_000),)))
    speed = explain(long, SPEEDS)
    assert (speed.weights, speed.cache) == (100_000_000, 1007 * 500_000)
    assert speed.sentence == (
        "Memory-bound (KV cache): 1 row uses 75% of the memory bandwidth; fewer or shorter chats are faster."
    )
    near = explain(replace(long, reads=Reads(100_000_000, ((16, 500_000),))), SPEEDS)
    assert near.cache == 16 * 500_000, "only the window is read"


def test_prompts_are_bound_by_compute() -> None:
    speed = explain(shot(StepTimes(launch=0.5), tokens=512.0, prefill=51_100.0), SPEEDS)
    assert speed.sentence == "Compute-bound: 51% of the device's peak; prompts are being prefilled."


def test_attention_over_long_prompts_is_arithmetic() -> None:
    reads = Reads(100_000_000, ((0, 1000),), attention=((0, 1000),))
    long = shot(StepTimes(launch=0.5), tokens=512.0, prefill=51_100.0, reads=reads)
    long = replace(long, rates=replace(long.rates, pairs=((0, 512 * 20_256.0),)))
    speed = explain(long, SPEEDS)
    assert speed.arithmetic.amount == 2 * 25_000_000 * 512 + 512 * 20_256 * 1000
    assert speed.sentence == "Compute-bound: 72% of the device's peak; prompts are being prefilled."
    slow = replace(long, reads=reads._replace(attention=((0, 6000),)), step_times=StepTimes(launch=5.0))
    assert explain(slow, SPEEDS).sentence == (
        "Limited by attention over long prompts: it is 71% of the arithmetic, "
        "which reaches 18% of the device's peak."
    )
    short = replace(long, reads=reads._replace(attention=()), step_times=StepTimes(launch=5.0))
    assert explain(short, SPEEDS).sentence.endswith("; a step of 512 tokens does not fill the device.")


def test_bound_by_the_host() -> None:
    busy = shot(StepTimes(plan=0.004, launch=0.004, wait=0.002, commit=0.004), rows=40.0)
    assert explain(replace(busy, device="NVIDIA H100"), SPEEDS).sentence == (
        "Limited by the host: 86% of a step is planning, launching and committing 40 rows; "
        "more concurrent chats cost little."
    )
    assert "host" in explain(busy, SPEEDS).sentence, (
        "even on a CPU, where launch time is the model's run time"
    )
    assert "host" not in explain(shot(StepTimes(plan=0.001, launch=0.03, commit=0.001)), SPEEDS).sentence


def test_the_launch_of_a_fleet_on_cpus_is_the_model() -> None:
    two = tuple(ReplicaView(number, "ready", "", "cpu", 1, 0, 1000, 1, 0) for number in (0, 1))
    one = shot(
        StepTimes(launch=0.08),
        rows=2.0,
        reads=Reads(100_000_000, ((0, 500_000),)),
        memory={"weights": 220_000_000},
    )
    fleet = explain(replace(one, device="2 x cpu", replicas=two), SPEEDS)
    assert "host" not in fleet.sentence
    assert fleet.cache == explain(one, SPEEDS).cache, "a step is one of one replica"
    assert fleet.held == 110_000_000


def test_bound_by_none_of_them() -> None:
    assert explain(shot(StepTimes(launch=0.1)), SPEEDS).sentence == (
        "Limited by small operations: neither memory (10%) nor arithmetic (0%) is near its limit; "
        "a batch of 1 row does not fill the device."
    )


def test_unknown_figures_are_not_shown() -> None:
    quiet = explain(snapshot(step_times=StepTimes(launch=0.01), reads=Reads(100)), SPEEDS)
    assert quiet.idle
    assert quiet.sentence == "The engine is idle. Send a message, then open this again."
    assert quiet.memory.amount == 0
    begun = explain(snapshot(running=(0,)), SPEEDS)
    assert (begun.idle, begun.sentence) == (
        False,
        "A reply is under way, but no step has ended in the last second.",
    )
    unmeasured = explain(shot(StepTimes(launch=0.0125)), None)
    assert unmeasured.sentence == "The device is being measured."
    assert unmeasured.memory.share == 0


@run
@pytest.mark.parametrize("size", [(80, 24), (200, 60), (40, 12)])
async def test_the_panel_shows_figures_and_an_explanation(
    bench: Callable[..., Any], size: tuple[int, int]
) -> None:
    backend = FakeBackend([shot(StepTimes(plan=0.0002, launch=0.012, commit=0.0003))])
    async with bench(size, backend=backend) as it:
        await it.until(lambda: it.main.engine.latest)
        await it.pilot.press("f8")
        await it.until(lambda: "Memory-bound (weights)" in it.screen_text())
        if size[0] >= 80:
            for words in (
                "81%",
                "10.0 GB/s measured",
                "100 MB of weights",
                "launch 12 ms",
                "1.0 rows, 1.0 tok",
            ):
                assert words in it.screen_text(), words
        await it.pilot.press("escape")
        assert not it.main.engine.observers


@run
async def test_it_waits_for_an_engine(bench: Callable[..., Any]) -> None:
    backend = FakeBackend([shot(StepTimes(launch=0.0125))])
    backend.loaded.clear()
    async with bench(backend=backend) as it:
        await it.pilot.press("f8")
        await it.until(lambda: "engine is not loaded" in it.screen_text())
        assert "Why this speed" in it.screen_text()
        backend.loaded.set()
        await it.until(lambda: "Memory-bound (weights)" in it.screen_text())


@run
async def test_it_measures_once_the_engine_is_loaded(bench: Callable[..., Any]) -> None:
    backend = FakeBackend([shot(StepTimes(launch=0.0125))])
    backend.loaded.clear()
    async with bench(backend=backend, clock=Clock()) as it:
        answer = backend.send

        async def send(command: Any) -> Any:
            if not backend.loaded.is_set():
                raise EngineError("the engine is not loaded")
            return await answer(command)

        backend.send = send
        await it.pilot.press("f8")
        await it.until(lambda: "The engine is not loaded." in it.screen_text())
        backend.loaded.set()
        await it.until(lambda: "GB/s measured" in it.screen_text())
        assert "Cannot measure" not in it.screen_text()


def test_shares_of_unknown_figures_are_not_shown() -> None:
    plain = described(explain(shot(StepTimes(launch=0.0125)), None), 60, ASCII, "it has gone").plain
    assert plain.startswith("it has gone") and "%" not in plain
    assert [line.split() for line in plain.splitlines() if "GB/s" in line] == [["8.08", "GB/s"]]
    assert "81%" in described(explain(shot(StepTimes(launch=0.0125)), SPEEDS), 60, ASCII).plain


@run
async def test_when_idle_the_last_steps_are_explained(bench: Callable[..., Any]) -> None:
    async with bench(backend=FakeBackend([shot(StepTimes(launch=0.0125))])) as it:
        await it.until(lambda: it.main.engine.latest)
        it.app.poller.stop()
        it.main.show_snapshot(snapshot(2000))
        await it.pilot.press("f8")
        await it.until(lambda: "(last run)" in it.screen_text())
        assert "Memory-bound (weights)" in it.screen_text()
        assert "Open this during a reply" in it.screen_text()
        it.main.engine.cut = "no link, as of 10:00:00"
        await it.pilot.press("escape", "f8")
        await it.until(lambda: "Why this speed (last run, no link, as of 10:00:00)" in it.screen_text())
        assert "Memory-bound (weights)" in it.screen_text()


@run
async def test_without_a_link_the_device_is_not_said_to_be_measured(bench: Callable[..., Any]) -> None:
    async with bench(backend=FakeBackend([shot(StepTimes(launch=0.0125))])) as it:
        it.main.engine.cut = "no link, as of 10:00:00"
        it.backend.send = lambda command: asyncio.Event().wait()
        await it.pilot.press("f8")
        await it.until(lambda: "The device is measured when the engine answers" in it.screen_text())


@run
async def test_after_a_run_the_step_is_as_long_as_in_the_monitor(bench: Callable[..., Any]) -> None:
    async with bench((200, 60), backend=FakeBackend([shot(StepTimes(launch=0.0125))])) as it:
        await it.until(lambda: it.main.engine.latest)
        it.app.poller.stop()
        it.main.show_snapshot(snapshot(2000, step_times=StepTimes(launch=0.0231)))
        it.main.show_snapshot(snapshot(2001, step_times=StepTimes(launch=0.0452)))  # a probe
        await it.until(lambda: "latency  step 45 ms" in it.screen_text())
        assert it.main.engine.at_work is not None
        assert it.main.engine.at_work.step_times.launch == 0.0231
        await it.pilot.press("f8")
        await it.until(lambda: "launch 23 ms" in it.screen_text())


@run
async def test_a_run_between_two_snapshots_is_explained_in_full(bench: Callable[..., Any]) -> None:
    """Of a short reply, the only snapshot with a running request may show just its prompt."""
    prompt = shot(StepTimes(launch=0.0125), tokens=14.0, prefill=280.0)
    async with bench(backend=FakeBackend([prompt])) as it:
        await it.until(lambda: it.main.engine.latest)
        it.app.poller.stop()
        rates = Throughput(decode=80.0, prefill=20.0, steps=80.0, batch=1.0, step_tokens=1.3)
        it.main.show_snapshot(snapshot(2000, step_times=StepTimes(launch=0.0125), pace=79.6, rates=rates))
        it.main.show_snapshot(snapshot(2001, step_times=StepTimes(launch=0.0125), pace=79.6))  # at rest
        await it.pilot.press("f8")
        await it.until(lambda: "1.0 rows, 1.3 tokens per step, 80 steps/s" in it.screen_text())


@run
async def test_the_steps_per_second_are_those_of_the_mean_step(bench: Callable[..., Any]) -> None:
    """The rates also count the time since the run, and they end up with its last steps alone."""
    async with bench(backend=FakeBackend([shot(StepTimes(launch=0.0125), pace=75.0)])) as it:
        await it.until(lambda: it.main.engine.latest)
        it.app.poller.stop()
        rates = Throughput(decode=9.0, steps=9.0, batch=1.0, step_tokens=1.0)
        for step, changes in (2000, {"rates": rates}), (2001, {}):
            it.main.show_snapshot(snapshot(step, step_times=StepTimes(launch=0.005), pace=190.0, **changes))
        await it.pilot.press("f8")
        await it.until(lambda: "1.0 tokens per step, 190 steps/s" in it.screen_text())
        assert "launch 5.0 ms" in it.screen_text()


@run
async def test_a_run_of_which_no_snapshot_shows_a_step_is_explained(bench: Callable[..., Any]) -> None:
    """A short reply starts and ends between two snapshots."""
    async with bench(backend=FakeBackend([shot(StepTimes(launch=0.0125))])) as it:
        await it.until(lambda: it.main.engine.latest)
        it.app.poller.stop()
        it.main.show_snapshot(snapshot(2000, step_times=StepTimes(launch=0.0125)))  # at rest
        queued = snapshot(2001, (2,), step_times=StepTimes(launch=0.0125))
        it.main.show_snapshot(queued)
        ended = shot(StepTimes(launch=0.0231), rows=0.0)
        rates = Throughput(decode=80.0, prefill=20.0, steps=80.0, batch=1.0, step_tokens=1.3)
        it.main.show_snapshot(replace(ended, rates=rates))
        it.main.show_snapshot(snapshot(2003, step_times=StepTimes(launch=0.0231)))  # at rest
        await it.pilot.press("f8")
        await it.until(lambda: "(last run)" in it.screen_text() and "GB/s measured" in it.screen_text())
        assert "launch 23 ms" in it.screen_text()
        assert "1.0 rows, 1.3 tokens per step, 80 steps/s" in it.screen_text()
        assert "100 MB of weights per step" in it.screen_text(), "its blocks are not known"


@pytest.mark.parametrize(("weights", "shown"), [(126_000_000, True), (100_000_000, False), (0, False)])
def test_weights_that_are_not_read_are_named(weights: int, shown: bool) -> None:
    """The monitor and F4 show those in memory."""
    speed = explain(shot(StepTimes(launch=0.0125), memory={"weights": weights}), SPEEDS)
    text = described(speed, 72, ASCII).plain
    assert "100 MB of weights, 1.01 MB of KV cache per step" in text
    assert ("(of 126 MB in all: the embedding is only looked up)" in text) is shown
    assert ("in all" in text) is shown


def test_the_parts_of_a_launch_fit_one_line() -> None:
    split = StepSplit(attention=0.0024, products=0.0037, sampling=0.0015, launch=0.0109)
    lines = described(explain(shot(StepTimes(launch=0.0109), split=split), SPEEDS), 72, ASCII).plain
    legend = next(line for line in lines.splitlines() if "attention" in line)
    assert legend.endswith("rest 3.3 ms") and len(legend) <= 72


def test_on_a_cpu_the_launch_is_broken_down() -> None:
    split = StepSplit(attention=0.002, products=0.006, sampling=0.001, launch=0.012)
    speed = explain(shot(StepTimes(launch=0.012), split=split), SPEEDS)
    lines = described(speed, 72, ASCII).plain.splitlines()
    work = next(at for at, line in enumerate(lines) if line.startswith("launch time"))
    assert lines[work].split()[2:] == ["P" * 8 + "L" * 25 + "W" * 5 + "C" * 12, "12", "ms"]
    assert lines[work + 1].split() == (
        "P attention 2.0 ms L products 6.0 ms W sampling 1.0 ms C rest 3.0 ms".split()
    )
    slower = split._replace(attention=0.02)
    lines = described(
        explain(shot(StepTimes(launch=0.012), split=slower), SPEEDS), 72, ASCII
    ).plain.splitlines()
    assert lines[work].endswith("  12 ms"), "parts take longer than the whole"
    plain = described(explain(shot(StepTimes(launch=0.012)), SPEEDS), 72, ASCII).plain
    assert "launch time" not in plain, "there is no split without a measurement"


@run
async def test_the_engine_is_asked_only_while_the_panel_is_open(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    async with bench(backend=FakeBackend([shot(StepTimes(launch=0.0125))]), clock=clock) as it:
        asked = []
        answer = it.backend.send

        async def send(command: Any) -> Any:
            asked.append(type(command).__name__)
            return await answer(command)

        monkeypatch.setattr(it.backend, "send", send)
        await it.pilot.press("f8")
        await it.until(lambda: asked.count("MeasureSpeeds") >= 1)
        before = len(asked)
        clock.now += 60
        it.main.show_snapshot(shot(StepTimes(launch=0.0125)))
        await it.until(lambda: len(asked) > before)
        await it.pilot.press("escape")
        before = len(asked)
        clock.now += 60
        it.main.show_snapshot(shot(StepTimes(launch=0.0125)))
        await it.pilot.pause()
        assert len(asked) == before


@run
async def test_an_error_disappears_once_the_measurement_succeeds(bench: Callable[..., Any]) -> None:
    clock = Clock()
    async with bench(backend=FakeBackend([shot(StepTimes(launch=0.0125))]), clock=clock) as it:
        answer, troubles = it.backend.send, [EngineError("not now")]

        async def send(command: Any) -> Any:
            if isinstance(command, MeasureSpeeds) and troubles:
                raise troubles.pop()
            return await answer(command)

        it.backend.send = send
        await it.pilot.press("f8")
        await it.until(lambda: "Cannot measure the device: not now" in it.screen_text())
        clock.now += 60
        it.main.show_snapshot(shot(StepTimes(launch=0.0125)))
        await it.until(lambda: "Memory-bound (weights)" in it.screen_text())


@run
async def test_a_snapshot_that_arrives_while_the_panel_closes_is_no_failure(
    bench: Callable[..., Any],
) -> None:
    async with bench((100, 30)) as it:
        await it.pilot.press("f8")
        await it.until(lambda: "Why this speed" in it.screen_text())
        await it.app.screen.query_one(VerticalScroll).remove()  # parts are removed before their screen
        it.main.show_snapshot(snapshot())
        await it.pilot.press("escape")
        assert it.failures == []


@run
async def test_it_scrolls_where_it_does_not_fit(bench: Callable[..., Any]) -> None:
    backend = FakeBackend([shot(StepTimes(launch=0.0125))])
    async with bench((40, 12), backend=backend) as it:
        await it.pilot.press("f8")
        await it.until(lambda: "Up Down scroll  Esc close" in it.screen_text())
        assert "steps/s" not in it.screen_text()
        await it.pilot.press(*["down"] * 40)
        await it.until(lambda: "steps/s" in it.screen_text())
        await it.pilot.press("home")
        await it.until(lambda: "Memory-bound" in it.screen_text())
        await it.pilot.resize_terminal(120, 40)
        await it.until(lambda: "steps/s" in it.screen_text() and "scroll" not in it.screen_text())
