"""Prompts and replies on GPUs: blocks go from GPU to GPU, or through pinned memory that both processes share.

With one GPU, both engines run on it.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.api.cache_spec import KvSchemeName
from engine.api.config import EngineConfig
from engine.api.events import Admitted, Event, PromptSent, RequestEvent, Transferred
from engine.api.params import SamplingParams
from engine.fleet.apart import ApartFleet
from engine.fleet.fleet import NUMBERS
from engine.fleet.local import start_apart_fleet
from engine.host.process import EngineProcess
from tests.runner.small import make
from tests.waiting import becomes

pytestmark = pytest.mark.cuda
GPUS = [
    pytest.param((0, 0), id="one GPU"),
    pytest.param(
        (0, 1),
        id="two GPUs",
        marks=pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
    ),
]
GREEDY = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
ONE = SamplingParams(max_tokens=1, temperature=0.0)
SCORED = SamplingParams(max_tokens=0, temperature=0.0, prompt_logprobs=1)


class Engines:
    """A fleet of an engine for prompts and one for replies, and an engine like the second."""

    def __init__(self, fleet: ApartFleet, one: EngineProcess, pids: dict[int, int]) -> None:
        self.fleet, self.one, self.pids, self.events = fleet, one, pids, list[Event]()
        fleet.subscribe(self.events.append)
        self._seed = 0

    def of(self, request: int) -> list[PromptSent]:
        return [each for each in self.events if isinstance(each, PromptSent) and each.request == request]

    def text(self, length: int) -> list[int]:
        """Another prompt each time."""
        self._seed += 1
        return [33 + self._seed % 90, *(33 + (at * (self._seed + 3)) % 90 for at in range(1, length))]

    def expected(self, text: list[int]) -> list[int]:
        """The reply after a hit in the prefix cache."""
        self.one.submit(text[: (len(text) - 1) // 16 * 16], ONE).result()
        return list(self.one.submit(text, GREEDY).result().tokens)

    def doubt(self, text: list[int], reply: list[int]) -> float:
        """How much likelier another token than that of the reply is, if one engine computes all at once."""
        stream = self.one.submit([*text, *reply], SCORED)
        scored = [each for delta in stream for each in delta.prompt_logprobs]
        return max(each.top[0][1] - each.logprob for each in scored[-len(reply) :])

    def told(self, request: int) -> str:
        """Where the blocks of a request came from."""
        mine = [each for each in self.events if isinstance(each, RequestEvent) and each.request == request]
        sent = [f"{each.sent} sent" + f" {each.error}"[:40] for each in mine if isinstance(each, PromptSent)]
        loads = [each for each in mine if isinstance(each, Transferred) and each.load]
        cached = [f"{each.cached} tokens cached" for each in mine if isinstance(each, Admitted)]
        return ", ".join([*sent, *(f"{each.blocks} loaded {each.error}" for each in loads), *cached])

    def sends(self, way: str) -> Callable[[], bool]:
        """Whether a prompt's blocks go this way and are loaded, once memory is pinned or opened."""

        def try_it() -> bool:
            before = len(self.events)
            stream = self.fleet.submit(self.text(40), GREEDY)
            stream.result()
            loads = [each for each in self.events[before:] if isinstance(each, Transferred) and each.load]
            loaded = any(each.request == stream.id and not each.error for each in loads)
            return loaded and any(each.way == way and each.sent for each in self.of(stream.id))

        return try_it


@contextmanager
def engines(folder: Path, gpus: tuple[int, int], *, direct: bool, **config: Any) -> Iterator[Engines]:
    make("llama", folder)
    prompts, replies = (
        EngineConfig(
            model=str(folder), **{"device": f"cuda:{gpu}", "dtype": "bfloat16", "blocks": 128} | config
        )
        for gpu in gpus
    )
    pids = dict[int, int]()

    def begin(config: EngineConfig, log: Path) -> EngineProcess:
        made = EngineProcess(config, log)
        pids[config.first_request // NUMBERS] = made.pid
        return made

    log = folder / "engine.log"
    fleet = start_apart_fleet([prompts, replies], 1, begin, log, 1, pauses=(0.0,), room=0.01, direct=direct)
    one = EngineProcess(replies, folder / "one.log")
    try:
        yield Engines(fleet, one, pids)
    finally:
        fleet.close()
        one.close()


@pytest.fixture(autouse=True)
def _never_brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a token of a prompt took as long as one of a reply, so that no prompt is too short to be sent."""
    monkeypatch.setattr("engine.fleet.apart.running_mean", lambda old, new: 1.0)


@pytest.mark.parametrize("gpus", GPUS)
@pytest.mark.parametrize(("way", "scheme"), [("gpu", "none"), ("gpu", "int8"), ("host", "none")])
def test_replies_are_those_after_a_hit_in_the_prefix_cache(
    tmp_path: Path, gpus: tuple[int, int], way: str, scheme: KvSchemeName
) -> None:
    with engines(tmp_path, gpus, direct=way == "gpu", kv_scheme=scheme) as made:
        assert becomes(made.sends(way), tick=0.2)
        for at in range(6):
            text = made.text(40 + 31 * at)
            stream = made.fleet.submit(text, GREEDY)
            assert list(stream.result().tokens) == made.expected(text)
            assert becomes(lambda request=stream.id: made.of(request))
            [sent] = made.of(stream.id)
            assert (sent.sent, sent.way, sent.error) == ((len(text) - 1) // 16, way, "")
        loads = [each for each in made.events if isinstance(each, Transferred) and each.load]
        assert not [each.error for each in loads if each.error]


@pytest.mark.parametrize("gpus", GPUS)
@pytest.mark.parametrize(("dtype", "doubt"), [("float32", 1e-3), ("bfloat16", 0.15)])
def test_a_killed_engine_for_prompts_costs_no_reply(
    tmp_path: Path, gpus: tuple[int, int], dtype: str, doubt: float
) -> None:
    """Some prompts are loaded, and some computed at once: the last bit of these may decide another token.
    `doubt`: how much less likely a token may be then, in nats.
    """
    with engines(tmp_path, gpus, direct=True, dtype=dtype) as made:
        assert becomes(made.sends("gpu"), tick=0.2)
        replies = made.pids[1]
        texts = [made.text(200 + at) for at in range(8)]
        streams = [made.fleet.submit(each, GREEDY) for each in texts]
        assert becomes(lambda: made.of(streams[0].id), tick=0.001), "blocks of some are being loaded"
        os.kill(made.pids[0], signal.SIGKILL)
        found = [list(each.result().tokens) for each in streams]
        others = list[float]()
        for text, stream, reply in zip(texts, streams, found, strict=True):
            same = reply == (expected := made.expected(text))
            others += [] if same else [made.doubt(text, reply)]
            print(made.told(stream.id), "" if same else f"{reply} instead of {expected}, doubt {others[-1]}")
        assert all(each < doubt for each in others)
        assert len(others) <= 2, "most have no such tokens"
        assert becomes(lambda: [each.state for each in made.fleet.snapshot().replicas] == ["ready"] * 2)
        assert becomes(made.sends("gpu"), tick=0.2), "the new one's memory is opened"
        assert made.pids[1] == replies, "that of the replies has died, too"
