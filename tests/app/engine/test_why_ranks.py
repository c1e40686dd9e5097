"""What limits the speed of a step of several stages or ranks."""

import pytest

from engine.api.snapshot import RankView, ReplicaView, StepSplit, StepTimes
from engine.api.speeds import Reads, Speeds
from minichat.features.why.feature import described
from minichat.features.why.speed import explain
from minichat.ui.monitor.figures import whose_memory
from minichat.ui.monitor.pane import ASCII
from tests.app.engine.test_why import SPEEDS, shot

H200 = Speeds(read=4.25e12, multiply=700e12)
HALF = Reads(596_000_000, ((0, 57_344 // 2),))  # the rows of `shot` have twice the tokens of those measured


@pytest.mark.parametrize(
    ("bubbles", "sentence"),
    [
        (
            (0.5, 0.6),
            "Limited by the pipeline: its 2 stages have nothing to do for 55% of the time with 1 row; "
            "more concurrent chats keep them busy.",
        ),
        (
            (0.6, 0.02, 0.4),
            "Limited by stage 2 of 3: the others have nothing to do for 50% of the time; more concurrent "
            "chats do not change that.",
        ),
        (
            (0.1, 0.2),
            "Memory-bound (weights): 1 row uses 81% of the memory bandwidth; "
            "up to about 20 concurrent chats cost almost nothing.",
        ),
    ],
)
def test_stages_without_work_are_the_reason(bubbles: tuple[float, ...], sentence: str) -> None:
    ranks = tuple(RankView(n, "cpu", n, 0, stage=n, bubble=each) for n, each in enumerate(bubbles))
    assert explain(shot(StepTimes(launch=0.0125), ranks=ranks), SPEEDS).sentence == sentence


def test_the_work_of_the_last_stage_is_no_part_of_the_launch() -> None:
    """It is done when its step is collected."""
    split, times = StepSplit(0.001, 0.002, 0.003, launch=0.02), StepTimes(launch=0.0005, wait=0.02)
    ranks = tuple(RankView(n, "cpu", n, 0, stage=n, bubble=0.5) for n in range(2))
    lines = described(explain(shot(times, split=split, ranks=ranks), SPEEDS), 72, ASCII).plain.splitlines()
    work = next(at for at, line in enumerate(lines) if line.startswith("last stage"))
    parts = "P attention 1.0 ms L products 2.0 ms W sampling 3.0 ms C rest, waits 14 ms"
    assert (lines[work].split()[-2:], lines[work + 1].split()) == (["20", "ms"], parts.split())
    assert not any(line.startswith("launch time") for line in lines)


@pytest.mark.parametrize(
    ("joining", "sentence"),
    [
        (
            (0.4, 0.6),
            "Limited by the exchanges of 2 ranks: these take 50% of a step, with the wait for the slower "
            "one; fewer ranks may be faster.",
        ),
        (
            (0.9, 0.9),
            "Limited by the exchanges of 2 ranks: these take 11 ms of a step, and one device would read what "
            "the others do in 10 ms; if all fits on one device, that is faster.",
        ),
        (
            (0.1, 0.2),
            "Memory-bound (weights): 1 row uses 81% of the memory bandwidth; "
            "up to about 20 concurrent chats cost almost nothing.",
        ),
    ],
)
def test_exchanges_of_ranks_are_the_reason(joining: tuple[float, ...], sentence: str) -> None:
    ranks = tuple(RankView(n, "cpu", n, 0, joining=each) for n, each in enumerate(joining))
    assert explain(shot(StepTimes(launch=0.0125), ranks=ranks), SPEEDS).sentence == sentence


@pytest.mark.parametrize(
    ("rows", "joining", "two", "one"),
    [
        (1, 0.092, 0.93, 0.637),
        (8, 0.176, 1.13, 1.10),
        (32, 0.206, 1.82, 1.47),
        (128, 0.243, 2.51, 3.33),
        (256, 0.199, 3.65, 5.75),
    ],
)
def test_one_device_is_said_to_be_faster_where_it_was(
    rows: int, joining: float, two: float, one: float
) -> None:
    """Milliseconds of a step of 0.6B on two H200s and on one (benchmarks/results/gpu_ranks.jsonl)."""
    ranks = tuple(RankView(n, "cuda", n, 0, joining=joining) for n in (0, 1))
    found = shot(
        StepTimes(wait=two / 1e3), ranks=ranks, rows=rows, reads=HALF, dtype="bfloat16", device="cuda"
    )
    assert ("on one device" in explain(found, H200).sentence) == (one < two)


def test_what_ranks_send_is_shown() -> None:
    ranks = tuple(RankView(n, "cpu", n, 0, joining=0.1, traffic=1e9 * n) for n in (1, 2))
    both = shot(StepTimes(launch=0.0125), ranks=ranks, memory={"weights": 150_000_000})
    text = described(explain(both, SPEEDS), 72, ASCII).plain
    assert "(of 150 MB on a rank: the embedding is only looked up)" in text
    assert text.endswith("exchanges   10% of the time; 2 ranks send 1.50 GB/s each on average")
    assert "exchanges" not in described(explain(shot(StepTimes(launch=0.0125)), SPEEDS), 72, ASCII).plain


REPLICAS = tuple(ReplicaView(number, "ready", "", "cpu", 1, 0, 8, 0, 0) for number in range(2))


def test_a_fleet_says_which_figures_are_of_one_replica() -> None:
    fleet = shot(StepTimes(launch=0.0125), replicas=REPLICAS, memory={"weights": 300_000_000})
    text = described(explain(fleet, SPEEDS), 72, ASCII).plain
    assert "(of 150 MB in a replica: the embedding is only looked up)" in text
    assert "steps/s in 2 replicas" in text
    assert "replica" not in described(explain(shot(StepTimes(launch=0.0125)), SPEEDS), 72, ASCII).plain


def test_ranks_are_counted_in_their_replica() -> None:
    ranks = tuple(RankView(n, "cpu", n, 0, joining=0.9, traffic=1e9) for n in (0, 1, 0, 1))
    found = explain(shot(StepTimes(launch=0.0125), ranks=ranks, replicas=REPLICAS), SPEEDS)
    assert found.sentence.startswith("Limited by the exchanges of 2 ranks: these take 11 ms of a step")
    assert "2 ranks send 1.00 GB/s each on average" in described(found, 72, ASCII).plain


@pytest.mark.parametrize("states", [("ready", "stopped"), ("dead", "no answer"), ("draining", "restarting")])
def test_only_replicas_that_run_have_memory(states: tuple[str, str]) -> None:
    replicas = tuple(each._replace(state=state) for each, state in zip(REPLICAS, states, strict=True))
    fleet = shot(StepTimes(launch=0.0125), replicas=replicas, memory={"weights": 150_000_000})
    assert "(of 150 MB in a replica: " in described(explain(fleet, SPEEDS), 72, ASCII).plain
    assert whose_memory(fleet) == "1 of 2 replicas"


def test_the_tokens_of_a_large_step_have_separators() -> None:
    large = shot(StepTimes(launch=0.5), tokens=4096)
    assert "1.0 rows, 4,096.0 tokens per step" in described(explain(large, SPEEDS), 72, ASCII).plain
