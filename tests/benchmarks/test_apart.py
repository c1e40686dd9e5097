"""Nothing in a comparison of fleets waits without end, neither for engines nor for replies."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.server.rounds import Reply, play
from benchmarks.server.watched import Watched
from engine.api.config import EngineConfig
from engine.api.errors import EngineError
from engine.api.params import SamplingParams
from engine.api.snapshot import Snapshot
from engine.dry import dry_engine
from engine.fleet.fleet import NUMBERS, Fleet
from engine.fleet.local import Start, start_fleet
from engine.host.thread import EngineThread

PROMPTS = [[*range(at, at + 40)] for at in (10, 200, 400)]


@pytest.fixture(params=[2000.0])
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    configs = [EngineConfig(model="pocket", blocks=256, first_request=at * NUMBERS) for at in range(2)]
    made = Fleet({at: EngineThread(dry_engine(each, rate=request.param)) for at, each in enumerate(configs)})
    yield made
    made.close()


def idle(shot: Snapshot) -> bool:
    return not shot.running and not shot.waiting


def test_a_round_has_the_first_token_of_each_prompt_and_leaves_nothing_running(fleet: Fleet) -> None:
    load = play(fleet, PROMPTS, 1000.0, 2, 40, 30.0, settle=0.05)
    assert (len(load.firsts), load.late) == (3, 0)
    assert load.gaps and min(load.gaps) >= 0
    assert load.seconds >= max(load.firsts)
    assert idle(fleet.snapshot())


@pytest.mark.parametrize("fleet", [10.0], indirect=True)
def test_replies_that_are_late_are_counted_and_aborted(fleet: Fleet) -> None:
    load = play(fleet, PROMPTS, 0.0, 0, 4000, 0.0)
    assert load.late == 3
    assert idle(fleet.snapshot())


def test_a_reply_that_fails_says_why(fleet: Fleet) -> None:
    with pytest.raises(EngineError, match="temperature"):
        Reply(fleet, PROMPTS[0], SamplingParams(temperature=-1.0)).ends(float("inf"))


def test_engines_that_do_not_load_in_time_are_killed_and_the_error_has_their_logs(tmp_path: Path) -> None:
    watched = Watched("two, here", tmp_path, 0.0, print)
    configs = [EngineConfig(model="pocket", device="", blocks=64)] * 2

    def build(start: Start, log: Path) -> Fleet:
        for number in range(2):
            log.with_stem(f"{log.stem}-{number}").write_text("first\nlast\n")
        return start_fleet(configs, start, log, 0)

    with pytest.raises(EngineError, match="an engine is not loaded within 0 s"), watched.running(build):
        pass
    _, state, *logs = watched.report().splitlines()
    assert state == "two-here-0 starting; two-here-1 starting"
    assert [each.strip() for each in logs[:2]] == [f"{tmp_path}/two-here-0.log:", "first"]


def test_an_engine_that_cannot_start_says_why(tmp_path: Path) -> None:
    watched = Watched("one", tmp_path, 60.0, print)

    def build(start: Start, log: Path) -> Fleet:
        raise EngineError("out of memory")

    with pytest.raises(EngineError, match="did not start: out of memory"), watched.running(build):
        pass
