"""Streams wait for their turn to be drawn, until the program ends."""

import asyncio

from minichat.session.pacer import Pacer


def test_a_rush_ends_waits_and_a_canceled_stream_ends() -> None:
    async def stream(pacer: Pacer) -> None:
        while True:
            await pacer.wait()
            await asyncio.sleep(0)

    async def test() -> None:
        pacer = Pacer(rate=0.001)
        streams = [asyncio.create_task(stream(pacer)) for _ in range(3)]
        await asyncio.sleep(0)
        pacer.rush()
        for each in streams:
            await asyncio.sleep(0)
            each.cancel()  # just as its wait ends
        done, _ = await asyncio.wait(streams, timeout=5.0)
        assert all(each.cancelled() for each in done) and len(done) == 3

    asyncio.run(test())
