"""Two engines of this process as a fleet: one client, whose replies are those of one engine."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from engine.api.commands import Abort, SetKvScheme, SetSwitch, Update
from engine.api.config import EngineConfig
from engine.api.errors import BadInput, EngineDead
from engine.api.events import Admitted, Died, Event, Finished, PromptRouted, Restarting, Switched
from engine.api.params import SamplingParams
from engine.api.snapshot import SchemeView, Snapshot, Throughput
from engine.api.speculation import Speculation
from engine.dry import dry_engine
from engine.fleet.fleet import NUMBERS, Fleet
from engine.fleet.futures import refusal
from engine.fleet.merged import merged, replica_view
from engine.host.thread import EngineThread
from engine.serving.engine import Engine
from tests.waiting import becomes

SHORT = SamplingParams(max_tokens=4, seed=0)
LONG = SamplingParams(max_tokens=4000, seed=0, ignore_eos=True)
PROMPT = [*range(10, 170)]  # 9 whole blocks, and more


def engine(number: int, blocks: int = 64, rate: float | None = None) -> Engine:
    config = EngineConfig(model="pocket", blocks=blocks, first_request=number * NUMBERS)
    return dry_engine(config, rate=rate)


@pytest.fixture
def engines() -> list[Engine]:
    return [engine(number, 512, rate=200.0) for number in range(2)]


@pytest.fixture
def fleet(engines: list[Engine]) -> Iterator[Fleet]:
    fleet = Fleet({number: EngineThread(each) for number, each in enumerate(engines)})
    yield fleet
    fleet.close()


@pytest.fixture
def events(fleet: Fleet) -> list[Event]:
    seen: list[Event] = []
    fleet.subscribe(seen.append)
    return seen


def of(events: list[Event], kind: type[Event], request: int) -> list[Event]:
    return [each for each in events if isinstance(each, kind) and getattr(each, "request", -1) == request]


def test_a_prompt_goes_to_its_blocks_which_the_engine_then_finds(fleet: Fleet, events: list[Event]) -> None:
    busy = fleet.submit([*PROMPT, 1], LONG)
    other = fleet.submit([*range(300, 330)], LONG)
    assert [each.id // NUMBERS for each in (busy, other)] == [0, 1]
    next(iter(busy))  # its prompt has been computed
    fleet.send(Abort((busy.id, other.id))).result()
    assert [delta.last for delta in busy][-1]
    again = fleet.submit([*PROMPT, 2], SHORT)
    assert again.id // NUMBERS == 0
    again.result()
    assert becomes(lambda: of(events, Finished, again.id))
    [routed], [admitted] = of(events, PromptRouted, again.id), of(events, Admitted, again.id)
    assert isinstance(routed, PromptRouted)
    assert isinstance(admitted, Admitted)
    assert (routed.replica, routed.cached, routed.blocks, routed.best) == (0, 10, 10, 10)
    assert admitted.cached == 16 * routed.cached, "the router and the engine disagree on the names"


def test_a_replica_that_has_ended_before_its_end_is_reported_is_passed_over(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        stream = fleet.submit([1, 2, 3], SHORT)
        assert stream.result().tokens
        assert stream.id // NUMBERS == number
        ended = refusal(EngineDead(f"replica {number} was killed"))
        monkeypatch.setattr(fleet._replicas[number], "send", lambda *_, ended=ended: ended)
    with pytest.raises(EngineDead, match="replica 0 was killed"):
        fleet.submit([1, 2, 3], SHORT).result()
    assert [fleet._router.queue(number) for number in range(2)] == [0, 0]


@pytest.mark.parametrize(("ends", "state"), [(Restarting, "restarting"), (Died, "dead")])
def test_a_replica_that_is_lost_after_its_snapshot_is_not_shown_as_ready(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, ends: Callable[..., Event], state: str
) -> None:
    shot = fleet._replicas[1].snapshot()
    after = (0.0,) if state == "restarting" else ()

    def lost() -> Snapshot:
        fleet._on_event(1, ends(0, 0.0, "it was killed", *after))
        return shot

    monkeypatch.setattr(fleet._replicas[1], "snapshot", lost)
    found = fleet.snapshot().replicas[1]
    assert (shot.state, found.state, found.error) == ("ready", state, "it was killed")


def test_another_owner_shares_nothing(fleet: Fleet, events: list[Event]) -> None:
    fleet.submit(PROMPT, SHORT, salt=b"one").result()
    stream = fleet.submit(PROMPT, SHORT, salt=b"two")
    stream.result()
    assert becomes(lambda: of(events, PromptRouted, stream.id))
    [routed] = of(events, PromptRouted, stream.id)
    assert isinstance(routed, PromptRouted)
    assert routed.cached == 0


def test_blocks_that_an_engine_has_evicted_are_not_counted() -> None:
    hosts = {number: EngineThread(engine(number, blocks=16)) for number in range(2)}
    fleet, seen = Fleet(hosts), list[Event]()
    fleet.subscribe(seen.append)
    try:
        for first in (10, 400, 800, 1200, 1600):  # five prompts of 11 blocks into two caches of 16
            fleet.submit([*range(first, first + 160)], SHORT).result()
            fleet.snapshot()  # the engines report their blocks a little after the last token
        last = fleet.submit(PROMPT, SHORT)
        last.result()
        assert becomes(lambda: of(seen, Finished, last.id))
        [routed], [admitted] = of(seen, PromptRouted, last.id), of(seen, Admitted, last.id)
        assert isinstance(routed, PromptRouted)
        assert isinstance(admitted, Admitted)
        assert 16 * routed.cached == admitted.cached < 144
    finally:
        fleet.close()


def test_commands_go_to_the_replica_of_a_request(
    fleet: Fleet, engines: list[Engine], events: list[Event]
) -> None:
    streams = [fleet.submit([*range(at, at + 40)], LONG) for at in (10, 400)]
    assert {each.id // NUMBERS for each in streams} == {0, 1}
    for each in streams:
        next(iter(each))
        fleet.send(Update(each.id, {"max_tokens": 3000})).result()
    child = fleet.fork(streams[1].id)
    assert child.id // NUMBERS == 1
    fleet.send(Abort((streams[0].id, streams[1].id, child.id))).result()
    assert becomes(lambda: fleet.snapshot().running == 0)
    with pytest.raises(BadInput):
        fleet.send(Update(7 * NUMBERS, {"max_tokens": 5})).result()
    assert fleet.send(Abort(())).result() is None


def test_a_switch_is_set_everywhere_and_reported_once(
    fleet: Fleet, engines: list[Engine], events: list[Event]
) -> None:
    fleet.send(SetSwitch("prefix_cache", False)).result()
    assert [each.scheduler.rules.prefix_cache for each in engines] == [False, False]
    assert len([each for each in events if isinstance(each, Switched)]) == 1
    with pytest.raises(BadInput, match="nothing"):
        fleet.send(SetSwitch("nothing", True)).result()


def test_no_replica_changes_its_cache_while_another_runs_a_request(fleet: Fleet) -> None:
    stream = fleet.submit(PROMPT, LONG)
    next(iter(stream))
    with pytest.raises(BadInput, match="while requests are alive: wait for 1, or end them"):
        fleet.send(SetKvScheme("int8")).result()
    fleet.send(Abort((stream.id,)))
    stream.result()
    with pytest.raises(BadInput, match=r"no model and no KV cache to change$"):  # now they are asked
        fleet.send(SetKvScheme("int8")).result()


def test_a_snapshot_of_all(fleet: Fleet) -> None:
    streams = [fleet.submit([*range(at, at + 40)], LONG) for at in (10, 400)]
    for each in streams:
        next(iter(each))
    shot = fleet.snapshot()
    assert (shot.state, shot.running, shot.blocks.size, len(shot.blocks.refs)) == ("ready", 2, 1024, 1024)
    assert [(each.number, each.running, each.blocks) for each in shot.replicas] == [(0, 1, 512), (1, 1, 512)]
    assert {each.id for each in shot.requests} == {each.id for each in streams}
    for request in shot.requests:  # its blocks, in the numbers of the whole map
        assert request.blocks
        assert {int(shot.blocks.owner[block]) for block in request.blocks} == {request.id}
        assert {block // 512 for block in request.blocks} == {request.id // NUMBERS}
    assert (
        shot.blocks.in_use == sum(each.in_use for each in shot.replicas) == int((shot.blocks.refs > 0).sum())
    )


@pytest.mark.parametrize(("devices", "free"), [(("cpu", "cpu"), 60), (("cuda:0", "cuda:1"), 130)])
def test_the_memory_that_replicas_of_a_machine_share_is_counted_once(
    fleet: Fleet, devices: tuple[str, str], free: int
) -> None:
    shot = fleet.snapshot()
    memory = [{"weights": 5, "device_free": left, "device_total": 100} for left in (70, 60)]
    shots = [replace(shot, device=one, memory=each) for one, each in zip(devices, memory, strict=True)]
    views = [replica_view(at, each, 0, silent=False) for at, each in enumerate(shots)]
    total = 100 if devices[0] == "cpu" else 200
    assert merged(shots, views).memory == {"weights": 10, "device_free": free, "device_total": total}


def test_schemes_of_all_replicas_together(fleet: Fleet) -> None:
    one = replace(
        fleet.snapshot(),
        schemes=(SchemeView("none", "", 10, 7), SchemeView("fp8", "no GPU", 0)),
        kv_schemes=(SchemeView("int8", "", 3, 9),),
    )
    views = [replica_view(number, one, 0, silent=False) for number in (0, 1)]
    both = merged([one, one], views)
    assert both.schemes == (SchemeView("none", "", 20, 14), SchemeView("fp8", "no GPU", 0))
    assert both.kv_schemes == (SchemeView("int8", "", 3, 18),), "bytes are of a token"


def test_the_age_of_a_block_is_in_steps_of_its_replica(fleet: Fleet) -> None:
    one = fleet.snapshot()
    size = len(one.blocks.refs)
    shots = [
        replace(one, step=step, blocks=replace(one.blocks, used_at=np.full(size, used_at)))
        for step, used_at in ((1000, 990), (20, 13))
    ]
    both = merged(shots, [replica_view(at, each, 0, silent=False) for at, each in enumerate(shots)])
    assert set(both.step - both.blocks.used_at[:size]) == {10}
    assert set(both.step - both.blocks.used_at[size:]) == {7}


def test_rates_of_all_replicas_together(fleet: Fleet) -> None:
    """Means are over the steps, and the gain over the tokens of both replicas."""
    rates = (
        Throughput(steps=10.0, contexts=((0, 100.0), (8, 8.0)), pairs=((0, 500.0), (8, 40.0)), adapters=8.0),
        Throughput(steps=30.0, contexts=((0, 20.0), (8, 8.0)), pairs=((0, 20.0), (8, 8.0))),
    )
    drafts = (Speculation("exit", True, 10, 40, 30, 2.0, 10), Speculation("exit", True, 1, 4, 0, 0.5, 49))
    hits = {"prefix_hit_rate": 0.5, "prompt_tokens": 3000}, {"prefix_hit_rate": 0.1, "prompt_tokens": 1000}
    shots = [
        replace(fleet.snapshot(), rates=each, speculation=brought, finished=number, **found)
        for number, (each, brought, found) in enumerate(zip(rates, drafts, hits, strict=True))
    ]
    both = merged(shots, [replica_view(at, each, 0, silent=False) for at, each in enumerate(shots)])
    assert both.rates.contexts == ((0, 40.0), (8, 8.0))
    assert both.rates.pairs == ((0, 140.0), (8, 16.0))
    assert both.rates.adapters == 2.0
    assert (both.prompt_tokens, both.prefix_hit_rate) == (4000, pytest.approx(0.4)), "a share of the tokens"
    assert both.speculation == Speculation("exit", True, 11, 44, 30, 100 / (50 / 2 + 50 / 0.5), 59)


def test_a_fleet_is_warm_once_a_replica_that_takes_prompts_is(fleet: Fleet) -> None:
    """/health says that it is warming until then, not while another replica starts again."""
    shots = [replace(fleet.snapshot(), warmed=each) for each in (1.0, 0.25)]
    views = [replica_view(at, each, 0, silent=False) for at, each in enumerate(shots)]
    assert merged(shots, views).warmed == 1.0
    assert merged(shots, [views[0]._replace(state="draining"), views[1]]).warmed == 0.25


def test_replies_are_those_of_one_engine(fleet: Fleet) -> None:
    alone = EngineThread(engine(0, 512))
    prompts = [[*range(at, at + 50)] for at in range(10, 200, 10)]
    try:
        expected = [alone.submit(each, SHORT).result().tokens for each in prompts]
        streams = [fleet.submit(each, SHORT) for each in prompts]
        assert [each.result().tokens for each in streams] == expected
        assert {each.id // NUMBERS for each in streams} == {0, 1}
    finally:
        alone.close()


def test_a_refused_request_leaves_no_queue(fleet: Fleet) -> None:
    stream = fleet.submit([*range(60)], SHORT, adapter="missing")
    with pytest.raises(Exception, match="missing"):
        stream.result()
    assert [each.queue for each in fleet.snapshot().replicas] == [0, 0]
