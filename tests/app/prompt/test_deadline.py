"""The settings' deadline for a first token goes with each message, to the fake and to a server's engine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.api.params import SamplingParams
from minichat.clients.address import Address
from minichat.clients.remote import RemoteBackend
from tests.app.configured import configured
from tests.app.conftest import bench, run
from tests.server.conftest import KEY, dry, serving

__all__ = ["bench"]


def write_settings(home: Path, text: str) -> None:
    configured(home, text)


@pytest.mark.parametrize(
    ("text", "deadline"), [("[chat]\ndeadline_ms = 250\n", 0.25), ("[chat]\nsystem = ''\n", None)]
)
@run
async def test_a_message_has_the_deadline_of_the_settings(
    bench: Callable[..., Any], tmp_path: Path, text: str, deadline: float | None
) -> None:
    write_settings(tmp_path, text)
    async with bench() as it:
        assert (await it.say("go")).deadline == deadline


@pytest.mark.soak
def test_a_remote_engine_gets_the_deadline(bench: Callable[..., Any], tmp_path: Path) -> None:
    write_settings(tmp_path, "[chat]\ndeadline_ms = 250\n")
    with serving(dry(rate=5.0)) as served:

        @run
        async def test() -> None:
            backend = RemoteBackend(Address(served.url, key=KEY))
            async with bench(backend=backend, params=SamplingParams(max_tokens=99)) as it:
                await it.until(lambda: it.app.lifecycle.ready.is_set())
                it.app.chats.active.send("tell me")
                await it.until(lambda: served.engine.scheduler.requests)
                [request] = served.engine.scheduler.requests.values()
                assert request.deadline == pytest.approx(request.arrived + 0.25)

        test()
