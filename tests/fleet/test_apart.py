"""Prompts and replies on different engines: two processes, whose replies are those of one engine."""

import itertools
import os
import random
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from engine.api.commands import Abort, SetSwitch
from engine.api.config import EngineConfig
from engine.api.events import (
    Admitted,
    BlocksSent,
    Event,
    Finished,
    PromptRouted,
    PromptSent,
    Queued,
    RequestEvent,
    TierProblem,
    Transferred,
)
from engine.api.params import SamplingParams
from engine.api.request import Finish
from engine.fleet.apart import ApartFleet, Pace
from engine.fleet.fleet import NUMBERS
from engine.fleet.local import start_apart_fleet
from engine.host.client import EngineClient
from engine.host.process import EngineProcess
from engine.host.restarting import RestartingEngine
from engine.host.thread import EngineThread
from engine.start import start
from minichat.cli import parser
from minichat.commands.options import engine_config
from minichat.commands.serve import ServerCallbacks, check, engine
from tests.cli.conftest import Run, run
from tests.server.conftest import listening
from tests.waiting import LIMIT, becomes

__all__ = ["run"]

GREEDY = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=6, temperature=1.0, seed=7, ignore_eos=True)


def config(dtype: str = "float32") -> EngineConfig:
    return EngineConfig(model="pocket", device="cpu", dtype=dtype, blocks=512, threads=1)


class Apart:
    """A fleet of an engine for prompts and one for replies, and its events."""

    def __init__(self, fleet: EngineClient) -> None:
        assert isinstance(fleet, ApartFleet)
        self.fleet, self.events = fleet, list[Event]()
        self.fleet.subscribe(self.events.append)

    def of(self, kind: type[Event], request: int) -> list[Event]:
        return [each for each in self.events if isinstance(each, kind) and each.request == request]

    def sent(self, request: int) -> PromptSent:
        assert becomes(lambda: self.of(PromptSent, request))
        [found] = self.of(PromptSent, request)
        assert isinstance(found, PromptSent)
        return found

    def in_use(self) -> list[int]:
        return [each.in_use for each in self.fleet.snapshot().replicas]

    def idle(self) -> bool:
        return self.in_use() == [0, 0] and self.fleet.snapshot().running == 0


@pytest.fixture(autouse=True)
def _never_brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a token of a prompt took as long as one of a reply, so that no prompt is too short to be sent."""
    monkeypatch.setattr("engine.fleet.apart.running_mean", lambda old, new: 1.0)


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apart]:
    """As `minichat serve` starts them."""
    words = "serve --prefill-gpus 1 --decode-gpus 1 --device cpu --dtype float32 --blocks 512 --kv-disk off"
    options, log = parser().parse_args(words.split()), tmp_path_factory.mktemp("apart") / "engine.log"
    check(options)
    callbacks = ServerCallbacks(lambda done, total: None, lambda: None, log)
    made = Apart(engine(options, engine_config(options), callbacks, None))
    yield made
    made.fleet.close()


@pytest.fixture(scope="module")
def alone() -> Iterator[EngineThread]:
    made = EngineThread(start(config()))
    yield made
    made.close()


def prompt(seed: int, length: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(10, 3000) for _ in range(length)]


@contextmanager
def stopped(apart: Apart) -> Iterator[None]:
    """The engine for prompts does nothing meanwhile."""
    source = apart.fleet._replicas[0]
    assert isinstance(source, RestartingEngine)
    os.kill(source.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(source.pid, signal.SIGCONT)


def shared_memory() -> set[int]:
    """The pieces of nameless memory that this process keeps. Those of earlier tests may end at any time."""
    found = set[int]()
    for each in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # it was closed, or was that of the folder
            if "memfd:minichat" in os.readlink(f"/proc/self/fd/{each}"):
                found.add(os.fstat(int(each)).st_ino)
    return found


def test_replies_are_those_of_one_engine(apart: Apart, alone: EngineThread) -> None:
    prompts = [[*prompt(1, 16 * (at % 3)), *prompt(at + 2, 17 + 37 * at)] for at in range(8)]
    params = [GREEDY, SAMPLED, GREEDY.changed(beams=2), SAMPLED.changed(n=2)] * 2
    expected = [alone.submit(*each).result() for each in zip(prompts, params, strict=True)]
    streams = [apart.fleet.submit(*each) for each in zip(prompts, params, strict=True)]
    found = [each.result() for each in streams]
    assert [(each.tokens, each.text) for each in found] == [(each.tokens, each.text) for each in expected]
    for stream, text in zip(streams, prompts, strict=True):
        sent = apart.sent(stream.id)
        [admitted] = apart.of(Admitted, stream.id)[:1]
        assert isinstance(admitted, Admitted)
        assert (sent.source, sent.blocks, sent.error) == (0, (len(text) - 1) // 16, "")
        assert sent.way == "host"
        assert (stream.id // NUMBERS, admitted.cached) == (1, 16 * sent.blocks), "the blocks have not arrived"


def test_what_the_other_side_has_is_not_sent(apart: Apart) -> None:
    text = prompt(100, 200)
    first = apart.fleet.submit(text, GREEDY)
    reply = first.result().tokens
    assert (apart.sent(first.id).sent, apart.sent(first.id).blocks) == (12, 12)
    other = apart.fleet.submit([*text[:150], *prompt(101, 90)], GREEDY)
    other.result()
    assert (apart.sent(other.id).sent, apart.sent(other.id).blocks) == (5, 14)
    known = apart.fleet.submit([*text, *reply[:3]], GREEDY)
    known.result()
    assert becomes(lambda: apart.of(Finished, known.id))
    assert not apart.of(PromptSent, known.id), "all whole blocks were there"


def test_prompts_that_arrive_together_are_computed_once(apart: Apart) -> None:
    text = prompt(150, 400)
    with stopped(apart):
        streams = [apart.fleet.submit([*text, at], GREEDY) for at in range(3)]
        assert {each.id // NUMBERS for each in streams} == {1}
    for each in streams:
        each.result()
    assert sum(apart.sent(each.id).sent for each in streams) == 25


def test_subscribers_know_the_request_and_not_its_prefill(apart: Apart) -> None:
    earlier = {each.request for each in apart.events if isinstance(each, RequestEvent)}
    stream = apart.fleet.submit(prompt(200, 100), GREEDY)
    stream.result()
    assert becomes(lambda: apart.of(Finished, stream.id))
    found = [each for each in apart.events if isinstance(each, RequestEvent)]
    events = [each for each in found if each.request not in earlier]
    assert {each.request for each in events} == {stream.id}
    kinds = [type(each) for each in events]
    assert kinds.count(PromptRouted) == kinds.count(Queued) == kinds.count(PromptSent) == 1
    assert BlocksSent not in kinds
    [moved] = [each for each in events if isinstance(each, Transferred)]
    assert (moved.tier, moved.load, moved.blocks) == ("exchange", True, 6)


def test_prompts_without_a_reply_are_computed_where_prompts_are(apart: Apart, alone: EngineThread) -> None:
    one = SamplingParams(max_tokens=1, temperature=0.0)
    stream = apart.fleet.submit(prompt(250, 100), one)
    assert stream.result().tokens == alone.submit(prompt(250, 100), one).result().tokens
    assert stream.id // NUMBERS == 0
    assert becomes(lambda: apart.of(Finished, stream.id))
    assert len(apart.of(Queued, stream.id)) == 1
    scored = apart.fleet.submit(prompt(250, 100), GREEDY.changed(prompt_logprobs=0))
    scored.result()
    assert scored.id // NUMBERS == 1
    assert not apart.of(PromptSent, scored.id), "its engine has to see all of it"


def test_a_short_prompt_is_computed_where_its_reply_is(apart: Apart, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart.fleet, "pace", Pace(prompt_token=0.001, gap=0.1))
    monkeypatch.setattr("engine.fleet.apart.running_mean", lambda old, new: old)
    streams = [apart.fleet.submit(prompt(length, length), GREEDY) for length in (100, 101)]
    for each in streams:
        each.result()
    assert becomes(lambda: apart.of(Finished, streams[0].id) and apart.of(PromptSent, streams[1].id))
    assert not apart.of(PromptSent, streams[0].id)


def test_without_a_prefix_cache_nothing_is_sent(apart: Apart, alone: EngineThread) -> None:
    apart.fleet.send(SetSwitch("prefix_cache", False)).result()
    try:
        stream = apart.fleet.submit(prompt(350, 100), GREEDY)
        assert stream.result().tokens == alone.submit(prompt(350, 100), GREEDY).result().tokens
        assert not apart.of(PromptSent, stream.id)
    finally:
        apart.fleet.send(SetSwitch("prefix_cache", True)).result()


def test_while_the_memory_fails_nothing_is_sent(apart: Apart) -> None:
    for problem, sent in (("it cannot be pinned", 0), ("", 1)):
        apart.fleet._on_event(0, TierProblem(0, 0.0, "exchange", problem))
        stream = apart.fleet.submit(prompt(370 + sent, 100), GREEDY)
        stream.result()
        assert len(apart.of(PromptSent, stream.id)) == sent


def test_an_ended_request_leaves_no_blocks_on_either_side(
    apart: Apart, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.fleet.fleet.ANSWERS_WITHIN", 0.2)
    assert becomes(apart.idle)
    with stopped(apart):
        held = [apart.fleet.submit(prompt(400 + at, 300), GREEDY) for at in range(2)]
        assert {each.id // NUMBERS for each in held} == {1}
        why = {"another engine computes its prompt"}
        assert becomes(lambda: {each.why for each in apart.fleet.snapshot().requests} == why)
        shot = apart.fleet.snapshot()
        assert (shot.waiting, shot.running) == (2, 0)
        apart.fleet.send(Abort(tuple(each.id for each in held))).result()
        assert [each.result().finish for each in held] == [Finish.ABORTED] * 2
    begun = apart.fleet.submit(prompt(402, 1200), GREEDY.changed(max_tokens=500))
    apart.fleet.send(Abort((begun.id,))).result()
    assert begun.result().finish is Finish.ABORTED
    assert becomes(apart.idle), apart.in_use()
    assert becomes(lambda: not apart.fleet._remote)
    assert [each.queue for each in apart.fleet.snapshot().replicas] == [0, 0]
    for each in held:
        assert not apart.of(PromptSent, each.id)


@pytest.mark.soak
def test_in_bfloat16_replies_are_those_after_a_hit_in_the_prefix_cache(tmp_path: Path) -> None:
    """There a prompt computed in one piece rounds differently than in two, so that near ties may end
    otherwise. Whether another engine computed the first piece must not matter.
    """
    fleet = start_apart_fleet([config("bfloat16")] * 2, 1, EngineProcess, tmp_path / "engine.log", 0)
    made, one = Apart(fleet), EngineThread(start(config("bfloat16")))
    try:
        for at in range(6):
            text = prompt(500 + at, 60 + 41 * at)
            whole = (len(text) - 1) // 16 * 16
            one.submit(text[:whole], SamplingParams(max_tokens=1, temperature=0.0)).result()
            stream = made.fleet.submit(text, GREEDY)
            assert stream.result().tokens == one.submit(text, GREEDY).result().tokens
            assert made.sent(stream.id).sent == whole // 16
    finally:
        made.fleet.close()
        one.close()


def test_an_engine_for_prompts_that_hangs_costs_no_reply(
    apart: Apart, alone: EngineThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its requests wait for a while, later ones not at all, until it goes on."""
    monkeypatch.setattr("engine.fleet.answers.WITHIN", 0.5)
    monkeypatch.setattr("engine.fleet.answers.PERIOD", 0.05)
    fresh = itertools.count(750)

    def replied() -> list[Event]:
        text = prompt(next(fresh), 100)
        stream = apart.fleet.submit(text, GREEDY)
        assert stream.result().tokens == alone.submit(text, GREEDY).result().tokens
        return apart.of(PromptSent, stream.id)

    with stopped(apart):
        [first] = replied()
        assert isinstance(first, PromptSent)
        assert first.error == "replica 0 did not answer within 0.5 s"
        assert replied() == [], "it is not asked"
    assert becomes(replied), "it gets prompts again"
    assert becomes(apart.idle)


def test_metrics_and_a_drain_over_http(apart: Apart) -> None:
    with listening(apart.fleet, keys=()) as (port, _):
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=LIMIT) as client:
            body = {"prompt": prompt(700, 100), "max_tokens": 3, "ignore_eos": True}
            assert client.post("/v1/completions", json=body).status_code == 200
            body["prompt"] = [*prompt(700, 60), *prompt(701, 40)]
            assert client.post("/v1/completions", json=body).status_code == 200
            text = client.get("/metrics").text
        found = dict(re.findall(r'prompt_blocks_apart_total\{[^}]*what="(\w+)"\} (\d+)', text))
        assert found == {"sent": "9", "there": "3", "failed": "0"}
        ways = dict(re.findall(r'prompt_blocks_sent_total\{[^}]*way="(\w+)"\} (\d+)', text))
        assert ways == {"gpu": "0", "host": "9"}
        by_source = re.findall(r'prompt_tokens_by_source_total\{[^}]*source="(\w+)"\} (\d+)', text)
        assert dict(by_source) == {
            "local_compute": "8",
            "local_cache_hit": "48",
            "external_kv_transfer": "144",
        }
        assert re.search(r"request_prompt_apart_seconds_count\{[^}]*\} 2", text)
        assert re.search(r'request_success_total\{[^}]*finished_reason="length"\} 2', text)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("--prefill-gpus 1", "must be used together"),
        ("--decode-gpus 1", "must be used together"),
        ("--prefill-gpus 0 --decode-gpus 1", "must be at least 1"),
        ("--prefill-gpus 60 --decode-gpus 5", "64 together at most"),
        ("--prefill-gpus 1 --decode-gpus 1 --replicas 2", "counts the engines by itself"),
        ("--prefill-gpus 1 --decode-gpus 1 --min-replicas 1", "whose engines all run"),
        ("--prefill-gpus 1 --decode-gpus 1 --ray", "share the memory of one machine"),
        ("--prefill-gpus 1 --decode-gpus 1 --tp 2", "run on one device each"),
        ("--prefill-gpus 1 --decode-gpus 1 --pp 2", "--pp cannot be combined with --prefill-gpus"),
        ("--prefill-gpus 1 --decode-gpus 1 --kv-window 64", "sends whole prefixes"),
        ("--prefill-gpus 1 --decode-gpus 1 --dry-run", "a dry run has no blocks"),
    ],
)
def test_options_that_make_no_sense_are_refused(run: Run, options: str, why: str) -> None:
    ended = run("serve", *options.split())
    assert (ended.code, why in ended.err) == (2, True), ended.err
