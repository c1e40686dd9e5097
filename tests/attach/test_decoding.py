"""Decoding from the screen on the real engine, local and remote: beam search, speculation, a picked token."""

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from engine.api.commands import Abort
from engine.api.config import EngineConfig
from engine.api.params import SamplingParams
from engine.start import start
from minichat.clients.address import Address
from minichat.clients.local import LocalBackend
from minichat.clients.remote import RemoteBackend
from minichat.ui.likely import Likely
from tests.app.conftest import Bench, bench, run, whole
from tests.attach.conftest import no_progress, text_of
from tests.cases import soak
from tests.server.conftest import KEY, Served, serving
from tests.waiting import LIMIT

__all__ = ["bench"]
CONFIG = EngineConfig(model="pocket", device="cpu", blocks=256, seed=0, threads=1)


@pytest.fixture(scope="module")
def pocket() -> Iterator[Served]:
    with serving(start(CONFIG)) as served:
        yield served


def backend(kind: str, served: Served) -> Any:
    if kind == "elsewhere":
        return RemoteBackend(Address(f"http://127.0.0.1:{served.port}", key=KEY))
    return LocalBackend(CONFIG, lambda config, progress: served.host)


async def replied(it: Bench, text: str) -> None:
    it.app.chats.active.send(text)
    await it.until(lambda: it.app.chats.active.run and it.app.chats.active.run.reply)


async def ended(it: Bench) -> str:
    await it.until(lambda: not it.app.chats.active.streaming)
    last = it.app.chats.active.chat.messages[-1]
    assert last.state == "stopped" and last.error.startswith("max tokens"), last.error
    return last.text


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["elsewhere", *soak("here")])
@run
async def test_a_token_is_picked_and_a_search_starts_and_ends(
    bench: Callable[..., Any], pocket: Served, kind: str
) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=24)
    async with bench((110, 40), backend=backend(kind, pocket), params=params) as it:
        await it.until(lambda: it.app.lifecycle.ready.is_set())
        await replied(it, "What is a KV block?")  # no two tokens are equally likely, unlike in a story
        whole = await ended(it)
        await it.pilot.press("alt+c")
        await it.until(lambda: it.picker.rows)
        for _ in range(6):
            await it.pilot.press("right")
        picker = it.picker
        await it.until(lambda: picker.rows and picker.rows[picker.choice].chosen and picker.at == 6)
        assert picker.choice == 0 and picker.shares[6] == max(map(_share, picker.rows)), "a greedy reply"
        await it.pilot.press("enter")
        await it.until(lambda: len(it.app.chats) == 2)
        assert await ended(it) == whole, "picking the original token leads to the same reply"

        await it.pilot.press("f3")
        active = it.app.chats.active
        active.tune(active.chat.params.changed(max_tokens=1800, ignore_eos=True))
        await replied(it, "Tell me a story about a robot.")
        active.tune(active.chat.params.changed(beams=3))
        await it.until(lambda: "3 of 3 live" in it.screen_text())
        active.tune(active.chat.params.changed(beams=1, temperature=0.7))
        await it.until(lambda: active.likely)
        active.tune(active.chat.params.changed(speculate="suffix"))
        await it.until(lambda: active.run.sent.speculate == "suffix" and len(active.run.trace.tokens) > 40)
        active.stop()
        await it.until(lambda: not active.streaming)
        assert active.chat.messages[-1].state in ("stopped", "done")
        active.tune(active.chat.params.changed(max_tokens=200, speculate="", beams=500))
        active.send("Too wide.")
        await it.until(lambda: not active.streaming)
        assert "500 beams need as many rows" in active.chat.messages[-1].error
        if kind == "elsewhere":
            await it.backend.detach()


def _share(row: Likely) -> float:
    return math.exp(row.logprob)


@run
async def test_the_texts_of_a_search_come_with_its_tokens(pocket: Served) -> None:
    """The tree has no gaps: no text is asked for after the tokens were shown."""
    screen, reply, checked = backend("elsewhere", pocket), None, 0
    try:
        await screen.load(no_progress)
        params = SamplingParams(beams=4, max_tokens=200, ignore_eos=True)
        reply = await screen.submit([{"role": "user", "content": "Tell me of a shark."}], params)
        latest = time.monotonic() + LIMIT
        while checked < 3:
            assert time.monotonic() < latest
            for view in (await screen.snapshot()).beams:
                found = (*view.live, *view.done, *view.dropped)
                tokens = sorted({token for each in found for token in each.tokens})
                texts = [piece.decode(errors="replace") for piece in pocket.host.pieces(tokens)]
                assert screen.words(tokens) == texts
                checked += bool(tokens)
    finally:
        if reply is not None:
            await screen.send(Abort((reply.id,)))
        await screen.detach()


@run
async def test_the_next_screen_resumes_a_picked_reply_from_its_first_word(pocket: Served) -> None:
    greedy, ask = SamplingParams(temperature=0.0, max_tokens=16), [{"role": "user", "content": "Hello."}]
    first, second = backend("elsewhere", pocket), backend("elsewhere", pocket)
    try:
        await first.load(no_progress)
        deltas = await whole(await first.submit(ask, greedy))
        tokens = [token for delta in deltas for token in delta.tokens]
        picked = await first.submit(ask, greedy, reply_prefix=tokens[:5], tag="picked")
        rest = await whole(picked)
        assert [token for delta in rest for token in delta.tokens] == tokens[5:]
        await second.load(no_progress)
        past = await second.resume("picked")
        again = await whole(past.reply)
        assert [token for delta in again for token in delta.tokens] == tokens
        assert text_of(again) == text_of(deltas)
        assert past.reply.prompt_tokens == picked.prompt_tokens
    finally:
        await first.detach()
        await second.detach()
