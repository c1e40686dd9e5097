"""The engine in this process is replaced by another one, completely."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.api.commands import SetKvScheme, SetQuantization, SetSwitch
from engine.api.config import EngineConfig
from engine.api.errors import BadCheckpoint, EngineDead
from engine.api.events import Bus, Delta, Died, Event, Handler
from engine.api.params import SamplingParams
from engine.host.thread import EngineThread
from engine.start import start
from minichat.cli import parser
from minichat.clients import local
from minichat.clients.bridge import in_thread
from minichat.clients.local import LocalBackend
from minichat.clients.protocol import Progress
from minichat.commands.tui import restart_words
from tests.app.conftest import run, whole
from tests.cli.conftest import TEMPLATE, write_model
from tests.models.lora import random_adapter
from tests.waiting import LIMIT, until


@run
async def test_the_old_engine_ends_and_its_memory_is_freed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "gc", gc)
    one, two = write_model(tmp_path / "one", f"{TEMPLATE}<think>\n"), write_model(tmp_path / "two")
    models: list[weakref.ref] = []

    def launch(config: EngineConfig, progress: Progress) -> Any:
        engine = start(config, progress)
        model = engine.runner.model
        model.itself = [model]  # Transformers models contain reference cycles, too
        gc.freeze()
        models.append(weakref.ref(model))
        return EngineThread(engine)

    backend = LocalBackend(EngineConfig(model=str(one), device="cpu", blocks=32), launch)
    received: list[Event] = []
    backend.subscribe(received.extend)
    progress: list[tuple[int, int]] = []
    first = await backend.load(lambda *bytes: None)
    assert (first.model, backend.has_template, backend.opens_thinking) == ("one", True, True)
    reply = await backend.submit("the", SamplingParams(max_tokens=60))

    second = await backend.switch(str(two), lambda *bytes: progress.append(bytes))
    assert (second.model, backend.has_template) == ("two", False)
    assert not backend.opens_thinking
    assert progress[-1][0] == progress[-1][1] > 0
    last = (await whole(reply))[-1]
    assert last.finish
    assert [model() is None for model in models] == [True, False]
    received.clear()
    again = await backend.submit("the", SamplingParams(max_tokens=3))
    assert sum(len(delta.tokens) for delta in await whole(again)) == 3
    assert received and not any(isinstance(event, Died) for event in received)
    assert backend.close()
    gc.freeze()  # as in tests/conftest.py


@run
async def test_the_old_engine_can_be_restored_if_the_new_one_fails(tmp_path: Path) -> None:
    one = write_model(tmp_path / "one")
    broken = write_model(tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"not what it was")
    backend = LocalBackend(EngineConfig(model=str(one), device="cpu", blocks=32))
    await backend.load(lambda *_: None)
    with pytest.raises(BadCheckpoint, match="corrupt or truncated"):
        await backend.switch(str(broken), lambda *_: None)
    with pytest.raises(EngineDead, match="corrupt or truncated"):
        await backend.submit("the", SamplingParams())
    assert (await backend.switch(str(one), lambda *_: None)).model == "one"
    assert backend.close()


@run
async def test_another_model_has_no_adapters_of_the_first(tmp_path: Path) -> None:
    one, two = write_model(tmp_path / "one"), write_model(tmp_path / "two")
    adapter = random_adapter(tmp_path / "adapter", one)
    config = EngineConfig(model=str(one), device="cpu", blocks=32, adapters=(f"mine={adapter}",))
    backend = LocalBackend(config)
    await backend.load(lambda *_: None)
    assert (await backend.switch(str(two), lambda *_: None)).adapters == ()
    [view] = (await backend.switch(str(one), lambda *_: None)).adapters
    reply = await backend.submit("the", SamplingParams(max_tokens=3), adapter="mine")
    assert view.name == "mine" and sum(len(delta.tokens) for delta in await whole(reply)) == 3
    assert backend.close()


@run
async def test_a_chat_finds_its_blocks_again_after_another_model(tmp_path: Path) -> None:
    """On disk what the first engine stored, and from then on in host memory, too."""
    one, two = str(write_model(tmp_path / "one")), str(write_model(tmp_path / "two", rms_norm_eps=0.01))
    room = {"blocks": 9, "host_blocks": 40, "max_context": 128, "preemption": "swap"}  # whatever it measures
    config = EngineConfig(model=one, device="cpu", kv_disk=f"{tmp_path / 'kv'}:0.1", **room)
    story, other = "The mice go out to see the moon. ", "0123456789 " * 10

    async def ask(prompt: str, chat: str) -> Delta:
        params = SamplingParams(max_tokens=8, temperature=0)
        deltas = await whole(await backend.submit(prompt, params, chat=chat))
        said.append("".join(delta.text for delta in deltas))
        return deltas[-1]

    async def full(prompt: str) -> int:
        """The tokens in the prompt's full blocks."""
        return await backend.count(prompt) // 16 * 16

    said = list[str]()
    messages = [story, story * 2, story * 3]
    backend = LocalBackend(replace(config, host_blocks=0, kv_disk=None))
    await backend.load(lambda *_: None)
    for message in messages:
        await ask(message, "")
    assert backend.close()
    never_stopped, said = said, list[str]()

    backend = LocalBackend(config)
    await backend.load(lambda *_: None)
    assert not (await ask(messages[0], "a")).loaded
    await backend.switch(two, lambda *_: None)
    assert not (await ask(messages[0], "a")).loaded, "another model's blocks"
    said.pop()
    await backend.switch(one, lambda *_: None)
    last = await ask(messages[1], "a")
    assert (last.tier, last.loaded) == ("disk", await full(messages[0]))
    everything = (await backend.count(messages[1]) + 7) // 16  # of the reply's last token nothing is stored
    while (await backend.snapshot()).host_in_use < everything:
        await asyncio.sleep(0.01)  # they sink once they are on disk
    await ask(other, "b")
    said.pop()
    last = await ask(messages[2], "a")
    assert (last.tier, last.loaded) == ("host", await full(messages[1]))
    assert said == never_stopped
    assert backend.close()


@run
async def test_a_model_comes_back_in_the_form_it_was_converted_to(tmp_path: Path) -> None:
    one = str(write_model(tmp_path / "one"))
    backend = LocalBackend(EngineConfig(model=one, device="cpu", blocks=32))
    await backend.load(lambda *_: None)
    await backend.send(SetKvScheme("int8"))
    await backend.send(SetQuantization("int8"))
    await until(lambda: backend.config_of(one).quantization == "int8")
    shot = await backend.switch(one, lambda *_: None)
    assert (shot.quantization, shot.kv_scheme) == ("int8", "int8")
    other = backend.config_of("pocket")
    assert (other.quantization, other.kv_scheme) == ("none", "none")
    options = parser().parse_args(["chat", "--model=pocket", "--kv=fp8"])
    given = EngineConfig(model="pocket", kv_scheme="fp8")
    again = parser().parse_args(restart_words(options, given, backend.config_of(one), "pocket"))  # after F5
    assert (again.model, again.quantization, again.kv) == (one, "int8", "int8")
    assert backend.close()


@run
async def test_a_new_engine_has_the_techniques_of_the_last_one(tmp_path: Path) -> None:
    one = str(write_model(tmp_path / "one"))
    backend = LocalBackend(EngineConfig(model=one, device="cpu", blocks=32))
    shot = await backend.load(lambda *_: None)
    usual = {each.name: each.on for each in shot.switches}
    await backend.send(SetSwitch("prefix_cache", False))
    await backend.send(SetSwitch("overlap", not usual["overlap"]))
    await backend.send(SetSwitch("overlap", usual["overlap"]))
    shot = await backend.switch(one, lambda *_: None)
    assert {each.name: each.on for each in shot.switches} == usual | {"prefix_cache": False}
    assert backend.close()


@run
async def test_who_subscribes_while_the_engine_loads_hears_each_event_once() -> None:
    loop, subscribed = asyncio.get_running_loop(), threading.Event()
    heard, asked = list[Event](), list[Handler]()
    bus, engine = Bus(), SimpleNamespace(templates={}, snapshot=lambda: None, close=lambda: None)
    backend = LocalBackend(EngineConfig(model="pocket"), lambda *_: engine)

    def subscribe(handler: Handler) -> Callable[[], None]:
        """The first call waits, on the thread that loads, until somebody has subscribed on the loop."""
        asked.append(handler)
        if asked == [handler]:
            loop.call_soon_threadsafe(subscribe_too)
            assert subscribed.wait(LIMIT)
        return bus.subscribe(handler)

    def subscribe_too() -> None:
        backend.subscribe(heard.extend)
        subscribed.set()

    engine.subscribe = subscribe
    await backend.load(lambda *_: None)
    bus.emit(Died(0, 0.0, "once"))
    await until(lambda: heard)
    assert len(heard) == 1
    await in_thread(backend._close_engine)
    bus.emit(Died(0, 0.0, "expected"))
    await asyncio.sleep(0)
    assert len(heard) == 1
