"""The engine in this process is replaced by another one, completely."""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

from engine.api.config import EngineConfig
from engine.api.errors import BadCheckpoint, EngineDead
from engine.api.events import Died, Event
from engine.api.params import SamplingParams
from engine.host.thread import EngineThread
from engine.start import start
from minichat.clients.local import LocalBackend
from minichat.clients.protocol import Progress
from tests.app.conftest import run, whole
from tests.cli.conftest import TEMPLATE, write_model
from tests.models.lora import random_adapter


@run
async def test_the_old_engine_ends_and_its_memory_is_freed(tmp_path: Path) -> None:
    one, two = write_model(tmp_path / "one", TEMPLATE), write_model(tmp_path / "two")
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
    assert (first.model, backend.has_template) == ("one", True)
    reply = await backend.submit("the", SamplingParams(max_tokens=60))

    second = await backend.switch(str(two), lambda *bytes: progress.append(bytes))
    assert (second.model, backend.has_template) == ("two", False)
    assert progress[-1][0] == progress[-1][1] > 0
    last = (await whole(reply))[-1]
    assert last.finish
    assert [model() is None for model in models] == [True, False]
    received.clear()
    again = await backend.submit("the", SamplingParams(max_tokens=3))
    assert sum(len(delta.tokens) for delta in await whole(again)) == 3
    assert received and not any(isinstance(event, Died) for event in received)
    assert backend.close()


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
