"""What counts as work of a stage, and how the time without work, or in exchanges, becomes a share."""

import os
import threading
from collections.abc import Iterator

import pytest
import torch

from engine.api.config import EngineConfig
from engine.distributed.collective import Exchanged
from engine.distributed.groups import clocks
from engine.distributed.rank_meters import RankMeters
from engine.distributed.stages import PipelineLink, near_stages

CPU = torch.device("cpu")


@pytest.fixture
def links() -> Iterator[tuple[PipelineLink, PipelineLink]]:
    """The first stage's link and the last one's, connected."""
    meeting, config = os.memfd_create("meeting"), EngineConfig(model="", pp=2)
    made = dict[int, PipelineLink]()

    def connect(rank: int) -> None:
        made[rank] = PipelineLink(rank, config, CPU, near_stages(rank, config, CPU, meeting))

    other = threading.Thread(target=connect, args=(1,), daemon=True)
    other.start()
    connect(0)
    other.join()
    yield made[1], made[0]
    for each in made.values():
        each.close()
    os.close(meeting)


def test_waiting_for_the_stage_before_is_no_work(
    links: tuple[PipelineLink, PipelineLink], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, last = links
    assert first.busy == last.busy == 0, "connecting is no work"
    for link, times in ((first, (0.0, 5.0)), (last, (5.0, 6.0, 10.0, 12.0)), (first, (20.0, 21.0))):
        clock = iter(times)
        monkeypatch.setattr(clocks.time, "perf_counter", lambda clock=clock: next(clock))
        with link.step(1):
            if link is first:
                link.send(torch.ones(1, 1))
            else:
                assert link.receive(1).item() == 1
        assert not list(clock)
    assert (first.busy, last.busy) == (6.0, 3.0)


def test_a_bubble_is_the_share_of_recent_time_without_work() -> None:
    meters = RankMeters(2)
    assert [meters.bubble(0), meters.bubble(1)] == [0, 0], "no step has ended yet"
    meters.note_work((1.0, 3.0), 4.0)
    assert [meters.bubble(0), meters.bubble(1)] == [0.75, 0.25]
    for _ in range(200):  # longer steps weigh more, and the first one is forgotten
        meters.note_work((0.0, 1.0), 1.0)
        meters.note_work((3.0, 0.0), 3.0)
    newest, before = 1.0, 0.9  # weights of the last two steps
    passed = 3 * newest + 1 * before
    assert meters.bubble(0) == pytest.approx(before / passed)
    assert meters.bubble(1) == pytest.approx(3 * newest / passed)
    meters.note_work((9.0, 0.0), 1.0)  # a late report: more work than time
    assert meters.bubble(0) == 0


def test_exchanges_become_a_share_of_the_time_and_a_rate() -> None:
    """The second rank's figures are those of a GPU, which are read every fourth step."""
    meters, steps = RankMeters(2), 400
    for step in range(1, steps + 1):
        read = step // 4 * 4
        meters.note_exchanges([Exchanged(0.25 * step, 100 * step), Exchanged(0.5 * read, 200 * read)], 1.0)
    assert meters.joining == pytest.approx([0.25, 0.5], rel=1e-3)
    assert meters.traffic == pytest.approx([100, 200], rel=1e-3)
