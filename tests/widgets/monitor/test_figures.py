"""Rates, latencies and the single line for small terminals."""

from dataclasses import replace

import pytest
from textual.content import Content

from engine.api.snapshot import Load, Quantiles, RankView, ReplicaView, Snapshot, StepTimes
from engine.api.snapshot import Throughput as Speeds
from engine.api.speculation import Speculation
from engine.fleet.fleet import NUMBERS
from engine.serving.ranks import load_of_all
from minichat.ui.monitor import EngineLine, Latency, MonitorPanel, RateGraphs
from minichat.ui.monitor.figures import clock_time, request_name
from minichat.ui.monitor.graphs import WINDOWS, History, rounded_up
from tests.waiting import until
from tests.widgets.monitor.snapshots import OWNERS, request, snapshot
from tests.widgets.monitor.stage import lines, staged


def at(decode: float, prefill: float = 0.0, *, when: float = 0.0) -> Snapshot:
    return snapshot(64, at=when, rates=Speeds(prefill, decode, 98.0, 5.2, 17.0))


async def test_rates_have_a_history_and_axes() -> None:
    rates = RateGraphs(ascii=True)
    async with staged(rates, (55, 6), focus=False):  # 30 cells for 30 seconds
        for second, decode in enumerate((0, 100, 200, 300, 400)):
            rates.remember(at(decode, when=100.0 + second))
        rates.update_from(at(400, 1234, when=104.0), OWNERS)
        assert [line.rstrip() for line in lines(rates)] == [
            " 3 rates  98 steps/s",
            " prefill   1,234 tok/s |",
            f" decode      400 tok/s |{'_..-':>30}",
            f" top 2,000, 500         -30 s{'now':>25}",
            " batch 5.2  step 17 tok  prefix hits 61%",
            " 2 preemptions  7 evictions  40 done",
        ]


async def test_the_top_of_a_graph_is_not_below_the_present_rate() -> None:
    """A column is the mean of its samples: here 200."""
    rates = RateGraphs(ascii=True)
    async with staged(rates, (55, 6), focus=False):
        for seconds, decode in (100.0, 0.0), (100.5, 400.0):
            rates.remember(at(decode, when=seconds))
            rates.update_from(at(decode, when=seconds), OWNERS)
        assert lines(rates)[2].startswith(" decode      400 tok/s")
        assert lines(rates)[3].startswith(" top 1, 500 ")


async def test_slow_rates_are_those_of_the_replies_headers() -> None:
    """A large model on a CPU may take seconds for a step."""
    rates, line = RateGraphs(ascii=True), EngineLine(ascii=True)
    shot = snapshot(64, at=100.0, rates=Speeds(0.0, 0.334, 0.334, 1.0, 1.0))
    async with staged(rates, (55, 6), focus=False):
        rates.remember(shot)
        rates.update_from(shot, OWNERS)
        assert lines(rates)[0].rstrip() == " 3 rates  0.33 steps/s"
        assert lines(rates)[2].startswith(" decode     0.33 tok/s")
        assert lines(rates)[3].startswith(" top 1, 0.5 ")
    async with staged(line, (90, 1), focus=False):
        line.update_from(shot, OWNERS)
        assert "| 0.33 tok/s" in str(line.render())


async def test_an_idle_graph_ends_at_its_last_sample() -> None:
    """An idle engine is not polled, so the graph does not move: its end is not the present."""
    rates = RateGraphs(ascii=True, clock=lambda: 0.0)
    async with staged(rates, (55, 6), focus=False):
        for seconds, running in ((0.0, 9.0), (1.0, 0.0)):
            shot = snapshot(64, at=seconds, rates=Speeds(0.0, running))
            rates.remember(shot)
            rates.update_from(shot, OWNERS)
        assert lines(rates)[3].split()[-1] == clock_time(0)


async def test_the_time_window_can_be_changed() -> None:
    panel = MonitorPanel(ascii=True)
    async with staged(panel, (60, 60)) as pilot:
        for second in range(0, 300, 2):
            panel.update_from(at(100.0 if second < 200 else 0.0, 1.0, when=float(second)), OWNERS)
        panel.rates.focus()

        def decode() -> str:
            rows = lines(panel.rates)
            first = next(y for y, row in enumerate(rows) if " decode" in row)
            return rows[first].split("|", 1)[1].strip()

        await until(lambda: "-30 s" in " ".join(lines(panel.rates)) and not decode())
        await pilot.press("t")
        await until(lambda: "-2 min" in " ".join(lines(panel.rates)) and decode())
        short = len(decode())
        await pilot.press("t")
        await until(lambda: "-10 min" in " ".join(lines(panel.rates)))
        assert 0 < short < len(decode()), "20 seconds of two minutes, and 200 of ten"
        await pilot.press("t")
        await until(lambda: "-30 s" in " ".join(lines(panel.rates)))


def test_a_history_has_samples_at_their_times() -> None:
    history = History()
    for moment, figure in ((0.0, 9.0), (10.2, 1.0), (11.7, 2.0), (12.1, 4.0), (12.9, 6.0), (20.0, 8.0)):
        history.add(moment, figure)
    means = [1.3, 4.0, 6.0, 6.0, 2.4, 0, 0, 0, 0, 8.0]  # 6 held for 2.5 seconds, and then there was a gap
    assert history.columns(0, 10.0, 10) == pytest.approx(means)
    means = [9 / 4, 0, 0, 0, (0.8 + 1.3) / 2, 5.0, 4.2, 0, 0, 8.0]
    assert history.columns(0, 20.0, 10) == pytest.approx(means)
    assert history.columns(0, 30.0, 3) == pytest.approx([9 / 4, (0.8 + 1.3 + 4 + 14.4) / 10, 8.0])
    history.add(3.0, 7.0)
    assert history.columns(0, 10.0, 2) == [0.0, 7.0], "the clock of a new engine starts over"
    assert history.columns(0, 10.0, 0) == []


@pytest.mark.parametrize("columns", [40, 41, 157])
@pytest.mark.parametrize("window", WINDOWS.values())
def test_the_area_of_a_graph_is_the_number_of_tokens(window: float, columns: int) -> None:
    """Two seconds of 50 tokens a second in every ten; the idle engine is not polled."""
    history = History()
    for start in range(0, 900, 10):
        for tenth in range(21):
            history.add(start + tenth / 10, 50.0 if tenth < 20 else 0.0)
    found, width = history.columns(0, window, columns), window / columns
    first = history.now - (len(found) - 1) * width - history.now % width
    busy = sum(max(0.0, min(start + 2, history.now) - max(start, first)) for start in range(0, 900, 10))
    area = sum(each * width for each in found[:-1]) + found[-1] * (history.now % width)
    assert area == pytest.approx(50 * busy)


def test_between_two_polls_the_figure_stays() -> None:
    history = History()
    for moment in range(0, 20, 2):
        history.add(float(moment), 5.0)
    assert history.columns(0, 10.0, 10) == [5.0] * 10


@pytest.mark.parametrize(
    ("value", "top"), [(0, 1), (0.3, 0.5), (1, 1), (101, 200), (200, 200), (412, 500), (5100, 10000)]
)
def test_the_top_of_an_axis_is_a_round_number(value: float, top: float) -> None:
    assert rounded_up(value) == pytest.approx(top)


async def test_rates_show_the_gain_of_speculation() -> None:
    rates = RateGraphs(ascii=True)
    async with staged(rates, (50, 8), focus=False):
        rates.update_from(snapshot(8, speculation=Speculation("", True, 10, 40, 30, 1.52)), {})
        assert " drafts 75% accepted  4.0 tok/step  gain 1.52x" in [line.rstrip() for line in lines(rates)]
        rates.update_from(snapshot(8), {})
        assert not any("drafts" in line for line in lines(rates))


async def test_a_mark_of_an_earlier_clock_is_not_in_the_graph() -> None:
    rates = RateGraphs(ascii=True)
    async with staged(rates, (55, 6), focus=False):
        rates.remember(at(100, when=500.0))
        rates.mark(500.0, "overlap off")
        rates.update_from(at(100, when=500.0), OWNERS)
        assert "overlap off" in lines(rates)[0]
        rates.remember(at(100, when=3.0))
        rates.update_from(at(100, when=3.0), OWNERS)
        assert "overlap off" not in lines(rates)[0]


async def test_the_tokens_of_a_large_step_have_separators() -> None:
    rates, large = RateGraphs(ascii=True), Speeds(9000.0, 0.0, 2.0, 1.0, 4096.0)
    async with staged(rates, (55, 6), focus=False):
        rates.remember(snapshot(64, rates=large))
        rates.update_from(snapshot(64, rates=large), OWNERS)
        assert lines(rates)[4].strip() == "batch 1.0  step 4,096 tok  prefix hits 61%"


async def test_graphs_grow_with_the_pane() -> None:
    rates = RateGraphs()
    async with staged(rates, (80, 14), focus=False):
        for decode in range(201):
            rates.remember(at(decode, 5, when=decode / 4))
        rates.update_from(at(200, 5, when=50.0), OWNERS)
        assert all(line.rstrip().endswith("⣿") for line in lines(rates)[1:11])
        assert "decode      200 tok/s" in lines(rates)[10]
        assert lines(rates)[1].split()[0] == "5" and lines(rates)[6].split()[0] == "200"


async def test_the_history_has_no_gap_after_another_pane_was_maximized() -> None:
    panel = MonitorPanel(ascii=True)
    async with staged(panel, (60, 30)) as pilot:
        panel.maximize(1)
        await pilot.pause()
        for second, decode in enumerate((100, 200, 300, 400)):
            panel.update_from(at(decode, when=100.0 + second), OWNERS)
        panel.maximize(None)
        await until(lambda: panel.rates.size.height > 2 and panel.rates.display)
        await until(lambda: any(" decode" in line for line in lines(panel.rates)))
        graph = next(line for line in lines(panel.rates) if " decode" in line).split("|", 1)[1].rstrip()
        assert len(graph) == 60 - 25 and graph.lstrip().count(" ") == 0


async def test_a_step_is_broken_down() -> None:
    latency = Latency(ascii=True)
    async with staged(latency, (62, 6), focus=False):
        latency.update_from(snapshot(64, step_times=StepTimes(0.001, 0.002, 0.002, 0.001)), OWNERS)
        assert [line.rstrip() for line in lines(latency)] == [
            " 4 latency  step 6.0 ms",
            " engine TTFT p50   92 ms  p99  310 ms  n 42",
            " next token  p50  8.1 ms  p99   12 ms  n 4,200",
            " " + "P" * 10 + "L" * 20 + "W" * 20 + "C" * 10,
            " P plan 1.0 L launch 2.0 W wait 2.0 C commit 1.0",
            " weights 5.20 GB  cache 1.10 GB  free 20.4 GB",
        ]


async def test_the_target_of_the_latency_policy_is_shown() -> None:
    latency = Latency(ascii=True)
    async with staged(latency, (62, 6), focus=False):
        latency.update_from(snapshot(64, step_times=StepTimes(0.006), latency_target=0.25), OWNERS)
        assert lines(latency)[0].rstrip() == " 4 latency  step 6.0 ms  TTFT target 250 ms"


async def test_it_is_shown_that_replies_limit_the_pieces_of_prompts() -> None:
    latency = Latency(ascii=True)
    async with staged(latency, (62, 6), focus=False):
        latency.update_from(snapshot(64, step_times=StepTimes(0.006), prompt_limit=1280), OWNERS)
        assert lines(latency)[0].rstrip() == " 4 latency  step 6.0 ms  prompts 1,280 a step"


async def test_latencies_are_updated_once_a_second_while_requests_run() -> None:
    latency, works = Latency(ascii=True), [request(1)]
    async with staged(latency, (62, 6), focus=False):
        shown = []
        for at, requests in ((0.0, works), (0.25, works), (0.75, works), (1.0, works), (1.5, [])):
            times = StepTimes(0.001 * (1 + at))
            latency.update_from(snapshot(64, requests, at=at, step_times=times), OWNERS)
            shown.append(lines(latency)[0].split("step ")[1].strip())
        assert shown == ["1.0 ms", "1.0 ms", "1.0 ms", "2.0 ms", "2.5 ms"]


async def test_a_gpu_shows_its_utilization() -> None:
    latency = Latency(ascii=True)
    async with staged(latency, (50, 6), focus=False):
        latency.update_from(snapshot(64, load=Load(0.874, 412.4, 700.0)), OWNERS)
        assert lines(latency)[0].rstrip().endswith("GPU 87%  412 of 700 W")
        latency.update_from(snapshot(64), OWNERS)
        assert "GPU" not in lines(latency)[0]


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        ((62, 6), " weights 12.6 MB  cache 268 MB  free 23.9 GB  draft 69.9 MB"),
        ((59, 6), " weights 12.6 MB  cache 268 MB  free 23.9 GB  draft 69.9 MB"),
        ((58, 6), " weights 12.6 MB  cache 268 MB  free 23.9 GB  ~"),
        ((46, 6), " weights 12.6 MB  cache 268 MB  free 23.9 GB ~"),
        ((45, 6), " weights 12.6 MB  cache 268 MB  free 23.9 GB~"),
        ((44, 6), " weights 12.6 MB  cache 268 MB  ~"),
        ((20, 6), " weights 12.6 MB  ~"),
        ((46, 7), " weights 12.6 MB  cache 268 MB  free 23.9 GB| draft 69.9 MB"),
        ((27, 7), " weights 12.6 MB| cache 268 MB  ~"),
        ((31, 20), " weights 12.6 MB  cache 268 MB| free 23.9 GB  draft 69.9 MB"),
    ],
)
async def test_memory_wraps_and_has_a_sign_if_a_part_is_left_out(size: tuple[int, int], shown: str) -> None:
    memory = {"weights": 12_600_000, "cache": 268_000_000, "draft": 69_900_000, "device_free": 23_900_000_000}
    latency = Latency(ascii=True)
    async with staged(latency, size, focus=False):
        latency.update_from(replace(snapshot(64, step_times=StepTimes(0.1)), memory=memory), OWNERS)
        assert "|".join(line.rstrip() for line in lines(latency)[5:]).rstrip("|") == shown


async def test_a_narrow_latency_pane_keeps_the_figures() -> None:
    latency = Latency()
    async with staged(latency, (40, 6), focus=False):
        latency.update_from(snapshot(64, step_times=StepTimes(0.0001, 0.02, 0.01, 0.0001)), OWNERS)
        assert lines(latency)[4].rstrip() == " █ pl 0.1 ▓ la 20.0 ▒ wa 10.0 ░ co 0.1"
        assert len(set(lines(latency)[3].split()[0])) == 2  # the parts differ by more than color
        assert lines(latency)[5].rstrip() == " weights 5.20 GB  cache 1.10 GB  …"
        ranks = tuple(RankView(rank, "cpu", 100 + rank, 2**20) for rank in (0, 1))
        latency.update_from(snapshot(64, ranks=ranks), OWNERS)
        assert lines(latency)[5].rstrip() == " one rank: weights 5.20 GB  …"
        fleet = snapshot(
            64,
            ranks=ranks,
            replicas=tuple(ReplicaView(each, "ready", "", "cpu", 0, 0, 8, 0, 0) for each in (0, 1)),
        )
        latency.update_from(replace(fleet, memory={"weights": 100_000_000}), OWNERS)
        assert lines(latency)[5].rstrip() == " one rank per replica: weights 100 MB"
        latency.update_from(replace(fleet, ranks=(), memory={"weights": 100_000_000}), OWNERS)
        assert lines(latency)[5].rstrip() == " 2 replicas: weights 100 MB"


def words(line: EngineLine) -> str:
    shown = line.render()
    assert isinstance(shown, Content)
    return shown.plain


async def test_the_engine_line() -> None:
    line = EngineLine(ascii=True)
    requests = [
        request(0, blocks=range(39)),
        request(1, "prefill"),
        *(request(number, "waiting") for number in (2, 3)),
        request(4, "preempted"),
    ]
    async with staged(line, (80, 3)) as pilot:
        assert words(line) == ""
        for rate in (103, 206, 309):
            line.update_from(snapshot(64, requests, rates=Speeds(decode=rate)), OWNERS)
        line.update_from(snapshot(64, requests, rates=Speeds(decode=412)), OWNERS)
        assert words(line) == " KV [#######____]  61% 39/64 | W 2 P 1 D 1 X 1 | 412 tok/s     _.-^ | 8.1 ms"
        for width, shown in (
            (60, " KV [####__]  61% | W 2 P 1 D 1 X 1 | 412 tok/s _.-^"),
            (40, " KV [####__]  61% | W2 P1 D1 X1"),
            (20, " KV [####__]  61%"),
        ):
            await pilot.resize_terminal(width, 3)
            await until(lambda shown=shown: words(line) == shown)


async def test_the_engine_line_has_the_time_of_a_short_step() -> None:
    line = EngineLine(ascii=True)
    async with staged(line, (120, 3)):
        line.update_from(snapshot(64, step_times=StepTimes(launch=0.000619)), OWNERS)
        assert words(line).endswith("| 0.62 ms")


async def test_the_engine_line_shows_a_dead_engine() -> None:
    line = EngineLine()
    async with staged(line, (80, 3)):
        line.update_from(snapshot(64, state="dead", error="out of\nmemory"), OWNERS)
        assert words(line) == " no engine: out of memory"
        line.update_from(snapshot(64, state="dead", error=f"stopped; see {'/folder' * 12}"), OWNERS)
        assert lines(line)[0].startswith(" no engine: stopped; see /folder/folder"), "as much as fits"
        assert lines(line)[0].endswith("…")


async def test_the_first_latencies_are_shown_at_once_and_then_once_a_second() -> None:
    latency = Latency(ascii=True)
    busy, none = [request(1)], {"ttft": Quantiles(), "itl": Quantiles()}
    async with staged(latency, (62, 6), focus=False):
        latency.update_from(snapshot(64, busy, at=10.0, **none), OWNERS)
        assert "p50       -" in lines(latency)[1]
        latency.update_from(
            snapshot(64, busy, at=10.25, **none | {"ttft": Quantiles(0.05, 0.05, 0.05, 1)}), {}
        )
        assert "p50   50 ms" in lines(latency)[1]
        latency.update_from(snapshot(64, busy, at=10.5), OWNERS)
        assert "p50  8.1 ms" in lines(latency)[2], "the inter-token latency was not measured before"
        latency.update_from(snapshot(64, busy, at=10.75, ttft=Quantiles(0.07, 0.07, 0.07, 2)), OWNERS)
        assert "p50   92 ms" in lines(latency)[1], "figures that change too often cannot be read"


async def test_an_engine_that_ended_has_no_latencies() -> None:
    latency = Latency(ascii=True)
    async with staged(latency, (62, 6), focus=False):
        shot = snapshot(64, [request(1)])
        latency.update_from(shot, OWNERS)
        latency.update_from(shot.ended("the engine was stopped"), OWNERS)
        assert "step -" in lines(latency)[0]
        assert "p50       -  p99       -  n 0" in lines(latency)[1]
        assert "p50       -  p99       -  n 0" in lines(latency)[2]


async def test_ranks_are_counted_with_the_share_of_a_step_in_which_they_join() -> None:
    latency = Latency(ascii=True)
    async with staged(latency, (55, 6), focus=False) as pilot:
        ranks = tuple(
            RankView(rank, "cpu", 100 + rank, 2**20, share) for rank, share in enumerate((0.1, 0.3))
        )
        latency.update_from(snapshot(64, ranks=ranks), OWNERS)
        assert lines(latency)[0].rstrip().endswith("2 ranks  joining 10% 30%")
        latency.update_from(snapshot(64, ranks=ranks * 4, at=2.0), OWNERS)
        assert lines(latency)[0].rstrip().endswith("8 ranks  joining 20%"), "the mean of many"
        latency.update_from(
            snapshot(64, ranks=tuple(replace(each, joining=0) for each in ranks), at=4), OWNERS
        )
        assert lines(latency)[0].rstrip().endswith("  2 ranks"), "no step has ended"
        sending = tuple(replace(each, device="cuda:0", traffic=1.5e9) for each in ranks)
        latency.update_from(snapshot(64, ranks=sending, load=Load(0.9, 400.0, 700.0), at=6.0), OWNERS)
        assert lines(latency)[0].rstrip().endswith("  2 ranks  joining 10% 30%")
        await pilot.resize_terminal(90, 6)
        words = "4 latency  step 8.1 ms  sends 1.50 GB/s  GPU 90%  400 of 700 W  2 ranks  joining 10% 30%"
        assert lines(latency)[0].split() == words.split(), "what fits is shown"
        loads = Load(0.9, 300.0, 700.0), Load(0.7, 300.0, 700.0)
        busy = tuple(replace(each, load=load) for each, load in zip(ranks, loads, strict=True))
        latency.update_from(snapshot(64, ranks=busy, load=load_of_all(loads), at=7.5), OWNERS)
        words = "4 latency  step 8.1 ms  GPU 90% 70%  600 of 1400 W  2 ranks  joining 10% 30%"
        assert lines(latency)[0].split() == words.split(), "that of each rank's GPU, and the power of all"
        await pilot.resize_terminal(55, 6)
        stages = tuple(
            RankView(3 - rank, "cpu", rank, 2**20, stage=rank // 2, bubble=rank / 10) for rank in range(4)
        )
        latency.update_from(snapshot(64, ranks=stages, load=Load(0.9, 400.0, 700.0), at=9.0), OWNERS)
        assert lines(latency)[0].rstrip().endswith("2 stages  bubble 5% 25%")


def test_names_of_requests() -> None:
    replica = NUMBERS
    assert [request_name(each) for each in (7, 2**32 + 7)] == ["7", "7"], "the same after a restart"
    assert [request_name(each) for each in (replica + 7, 3 * replica + 2**32)] == ["1/7", "3/0"]
