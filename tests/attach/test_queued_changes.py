"""Changes that wait for the link, and what becomes of them if another engine answers."""

import asyncio

import pytest

from engine.api.commands import Abort, SetSwitch
from engine.api.errors import UnknownRequest
from engine.api.params import SamplingParams
from tests.app.conftest import run
from tests.attach.conftest import attached
from tests.server.conftest import Served, dry, serving


@run
async def test_changes_are_sent_to_a_restarted_engine_but_not_those_of_requests(own: Served) -> None:
    async with attached(own) as it:
        reply = await it.backend.submit("tell me", SamplingParams(max_tokens=4000, ignore_eos=True))
        it.proxy.cut()
        await it.lost()
        first, abort, last = (
            asyncio.create_task(it.backend.send(command))
            for command in (
                SetSwitch("prefix_cache", False),
                Abort((reply.id,)),
                SetSwitch("chunked_prefill", False),
            )
        )
        with serving(dry(rate=50)) as other:
            it.proxy.restore(other.port)
            assert (await it.back()).restarted
            await asyncio.gather(first, last)
            with pytest.raises(UnknownRequest, match="the engine was restarted"):
                await abort
            shot = await it.backend.snapshot()
            assert {each.name: each.on for each in shot.switches}["prefix_cache"] is False
