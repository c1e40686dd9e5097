"""An engine process may die without the program, and a lost engine is restarted."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.api.config import EngineConfig
from engine.api.errors import EngineDead, EngineError
from engine.api.events import Died, Event
from engine.api.params import SamplingParams
from engine.host.process import EngineProcess
from minichat.clients.fake import FakeBackend
from minichat.clients.local import LocalBackend, in_process
from minichat.clients.protocol import Progress
from minichat.features.leaving import RESTART
from tests.app.conftest import run, snapshot, whole
from tests.cli.conftest import TEMPLATE, write_model
from tests.waiting import until


@run
async def test_an_engine_process_dies_without_the_program_and_is_restarted(tmp_path: Path) -> None:
    model = write_model(tmp_path / "one", TEMPLATE)
    log = tmp_path / "state" / "engine.log"
    hosts: list[EngineProcess] = []

    def launch(config: EngineConfig, progress: Progress) -> Any:
        hosts.append(in_process(log)(config, progress))
        return hosts[-1]

    backend = LocalBackend(EngineConfig(model=str(model), device="cpu", blocks=32), launch)
    received: list[Event] = []
    backend.subscribe(received.extend)
    assert backend.words([1, 2]) == []
    progress: list[tuple[int, int]] = []
    first = await backend.load(lambda *bytes: progress.append(bytes))
    assert (first.model, first.state, backend.has_template) == ("one", "ready", True)
    assert progress[-1][0] == progress[-1][1] > 0
    assert len(backend.words([1, 2, 3])) == 3

    reply = await backend.submit(
        [{"role": "user", "content": "the"}], SamplingParams(max_tokens=60, ignore_eos=True)
    )
    os.kill(hosts[0].pid, signal.SIGKILL)
    last = (await whole(reply))[-1]
    assert "killed by SIGKILL" in last.error and str(log) in last.error
    assert (await backend.snapshot()).state == "dead"
    with pytest.raises(EngineDead, match="SIGKILL"):
        await backend.submit("the", SamplingParams(max_tokens=3))
    # It arrives on another channel than the end of the reply.
    await until(lambda: any(isinstance(event, Died) for event in received))
    assert [type(event) for event in received].count(Died) == 1

    assert (await backend.switch(str(model), lambda *_: None)).state == "ready"
    again = await backend.submit("the", SamplingParams(max_tokens=3, ignore_eos=True))
    assert sum(len(delta.tokens) for delta in await whole(again)) == 3

    assert backend.close()
    assert log.parent.stat().st_mode & 0o077 == 0


@run
async def test_a_lost_engine_is_restarted_in_place_or_else_with_the_program(
    bench: Callable[..., Any],
) -> None:
    backend = FakeBackend([snapshot()])
    async with bench((160, 30), backend=backend) as it:
        await it.answered(await it.say("hello"), "here")
        for _ in range(2):
            backend.emit(Died(7, 1.0, "the engine's process was ended by SIGKILL"))
            await it.until(lambda: "F5 restarts the engine" in it.screen_text())
            await it.pilot.press("f5")
            await it.until(lambda: it.app.lifecycle.alive)
        assert backend.switched == ["tiny", "tiny"]
        assert it.texts()[-1] == ("assistant", "here", "done")
        await it.answered(await it.say("and now"))
        backend.unloadable["tiny"] = EngineError("the device is gone")
        backend.emit(Died(7, 1.0, "the device is gone"))
        await it.until(lambda: "F5 restarts the engine" in it.screen_text())
        await it.pilot.press("f5")
        await it.until(lambda: "F5 restarts the program" in it.screen_text())
        await it.pilot.press("f5")
        await it.until(lambda: it.app.return_code == RESTART)
