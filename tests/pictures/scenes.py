"""The scenes: each leads the program to a screen, and restores it afterwards."""

import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from engine.api.errors import ModelNotFound
from engine.api.events import Admitted, Delta, FirstToken, TokenLogprob
from engine.api.params import SamplingParams
from engine.api.snapshot import BeamsView, HypothesisView
from engine.models.support import Support
from minichat.features.chats import chats
from minichat.features.tour.panel import TourPanel
from minichat.models.catalog import Model
from tests.pictures.world import Device, Sitting, World, course, rest, with_experts

MODELS = [
    Model("Qwen/Qwen3-8B", "hub cache", Support("qwen3", 16_400_000_000, True), recent=True),
    Model("pocket", "built in", Support("llama", 3_100_000, True)),
    Model("~/models/TinyLlama-1.1B-Chat", "folder", Support("llama", 2_200_000_000, True)),
    Model("bigscience/bloom-560m", "hub cache", Support("bloom", 1_120_000_000)),
    Model("google/bert-base", "hub cache", Support("bert", 440_000_000, trouble="it predicts no tokens")),
]
STORY = ("Once upon", " a time", " there was", " a fox", " who lived", " in a", " lantern", " called", " Tom")
STORY += (".",)


def keys(*pressed: str, wait: str) -> Callable[[World], Any]:
    """A scene that is opened by keys and closed by Escape."""

    @asynccontextmanager
    async def scene(it: World) -> AsyncIterator[None]:
        await it.pilot.press(*pressed)
        await it.until(lambda: wait in it.screen_text())
        yield
        await it.pilot.press("escape")

    return scene


def pane(number: int) -> Callable[[World], Any]:
    """One pane of the monitor, maximized."""

    @asynccontextmanager
    async def scene(it: World) -> AsyncIterator[None]:
        await it.pilot.press("alt+m", str(number))
        yield
        await it.pilot.press(str(number), "escape")
        it.main.panels.side_requested = None
        it.main.lay_out()

    return scene


@asynccontextmanager
async def plain(it: World) -> AsyncIterator[None]:
    yield


@asynccontextmanager
async def decoding(it: World) -> AsyncIterator[None]:
    await it.pilot.press("f3")
    yield
    await it.pilot.press("f3")


@asynccontextmanager
async def quantization(it: World) -> AsyncIterator[None]:
    await it.pilot.press("f4")
    yield
    await it.pilot.press("f4")


@asynccontextmanager
async def monitor(it: World) -> AsyncIterator[None]:
    """Shown at every size: on a small terminal it fills the screen."""
    it.main.panels.side_requested = True
    it.main.lay_out()
    yield
    it.main.panels.side_requested = None
    it.main.lay_out()


@asynccontextmanager
async def streaming(it: World) -> AsyncIterator[None]:
    """Four chats stream at the same time beside the monitor."""
    await it.resize((120, 40))  # a hidden monitor draws no graph of what it receives
    for number in range(len(it.app.chats)):
        chats.go(it.app.context, number)
        await it.say("And in one sentence?")
    for number in range(len(it.replies)):
        await it.stream(number, f"In one sentence, as number {number + 1}: ")
        await it.stream(number, "blocks of equal size make room for **any** number of chats, ")
    it.work()
    yield


@asynccontextmanager
async def parting(it: World) -> AsyncIterator[None]:
    """A broadcast whose replies have diverged, with at most two chats."""
    await it.resize((200, 60))
    await it.pilot.press("alt+a")
    it.main.prompt.put("go")
    await it.pilot.press("enter")
    await it.until(lambda: len(it.replies) == 2)
    for number, words in enumerate(([7, 8], [7, 9])):
        for token in words:
            top = tuple((each, math.log(share)) for each, share in ((token, 0.5), (17 - token, 0.25)))
            drawn = TokenLogprob(token, math.log(0.5), 1, top)
            await it.stream(number, f" word{token}", [drawn])
    await it.until(lambda: it.screen_text().count("diverge at token") == 2)
    yield


class StoryDevice(Device):
    """A device whose tokens are the words of a short story."""

    def words(self, tokens: Sequence[int]) -> list[str]:
        return [STORY[token] for token in tokens]


@asynccontextmanager
async def beams(it: World) -> AsyncIterator[None]:
    """A beam search in the middle of a reply, with dropped hypotheses."""
    await it.resize((120, 40))
    it.app.chats.active.tune(SamplingParams(beams=4))
    reply = await it.say("Tell me a story.")
    reply.send(Delta(reply.id, (0, 1, 2), "Once upon a time there was", tail=" a fox who lived"))
    live = tuple(
        HypothesisView(10 + place, 0, score, tokens)
        for place, (score, tokens) in enumerate([(-2.31, (3, 4, 5)), (-2.40, (3, 4, 6)), (-3.07, (3, 7))])
    )
    done, dropped = (HypothesisView(-1, -1, -2.95, (8, 9)),), (HypothesisView(13, 1, -4.2, (3, 7, 6)),)
    await it.until(lambda: "there was a fox" in it.screen_text())
    shot = replace(course(8)[-1], beams=(BeamsView(reply.id, 4, 3, live, done, dropped),))
    it.main.show_snapshot(shot)
    it.drawer.see_snapshot(shot)
    await it.pilot.press("f3")
    yield
    await it.pilot.press("f3")
    reply.end()
    await it.until(lambda: not it.app.chats.active.streaming)


@asynccontextmanager
async def tokens(it: World) -> AsyncIterator[None]:
    """The token picker, at the least likely token of a reply."""
    await it.resize((120, 40))
    it.app.chats.active.tune(SamplingParams(temperature=0.7))
    reply = await it.say("And another one.")
    shares = (0.62, 0.93, 0.71, 0.44, 0.18, 0.97, 0.05, 0.5, 0.83, 0.99)
    for token, share in enumerate(shares):
        others = [(each, math.log((1 - share) / 2 ** (1 + place))) for place, each in enumerate((4, 7, 9, 2))]
        top = sorted([(token, math.log(share)), *(pair for pair in others if pair[0] != token)], key=_second)
        drawn = TokenLogprob(token, math.log(share), 1, tuple(top))
        reply.send(Delta(reply.id, (token,), STORY[token], (drawn,)))
    reply.end()
    await it.until(lambda: not it.app.chats.active.streaming)
    await it.pilot.press("alt+c")
    await it.until(lambda: it.picker.rows)
    yield
    await it.pilot.press("escape")


def _second(pair: tuple[int, float]) -> float:
    return -pair[1]


@asynccontextmanager
async def loading(it: World) -> AsyncIterator[None]:
    await it.until(lambda: it.backend.progress)
    it.main.banner.say("loading Qwen3-8B  4.10 of 16.4 GB  1.20 GB/s  10 s left", 0.25)
    it.main.prompt.put("can I type already?")
    yield


@asynccontextmanager
async def tour(it: World) -> AsyncIterator[None]:
    await it.until(lambda: it.main.query(TourPanel))
    yield


@asynccontextmanager
async def tour_page(it: World) -> AsyncIterator[None]:
    await it.pilot.press("enter", "enter")
    await it.until(lambda: it.replies)
    await it.until(lambda: it.app.chats.active.run and it.app.chats.active.run.reply)
    await it.stream(0, "Once upon a time there was a fox, ")
    it.app.receive_events([Admitted(3, 1.0, 0, 0), FirstToken(4, 1.1, 0, 0.04)])
    it.work(12)
    await it.until(lambda: "was admitted" in it.screen_text())
    yield


def _slow() -> dict[str, Any]:
    backend = Device([rest()])
    backend.loaded.clear()
    return {"backend": backend}


# Scenes that are taken in all sizes and all looks. Of the others, looks other than the dark one are taken
# once.
MAIN = ("chat", "panes", "monitor", "decoding", "quantization", "parting", "tour-page")
SITTINGS = {
    "one": Sitting(
        1,
        {
            "chat": plain,
            "find": keys("ctrl+f", *"block", wait="block"),
            "help": keys("f1", wait="Esc"),
            "palette": keys("ctrl+p", wait="Stop this reply"),
            "models": keys("alt+o", wait="built in"),
            "jump": keys("ctrl+o", wait="Explain"),
            "techniques": keys("alt+x", wait="prefix cache"),
            "rename": keys("alt+t", wait="Rename this chat"),
            "quantization": quantization,
        },
    ),
    "several": Sitting(
        4,
        {
            "panes": streaming,
            "monitor": monitor,
            "kvmap": pane(1),
            "queues": pane(2),
            "rates": pane(3),
            "latency": pane(4),
            "events": pane(5),
            "decoding": decoding,
            "why": keys("f8", wait="Why this speed"),
        },
    ),
    "strategies": Sitting(
        1,
        {"beams": beams, "tokens": tokens},
        lambda: {"backend": StoryDevice([rest()])},
    ),
    "experts": Sitting(
        1,
        {"monitor-experts": monitor, "experts": pane(6)},
        lambda: {"backend": Device([with_experts(rest())])},
    ),
    "broadcast": Sitting(2, {"parting": parting}),
    "first": Sitting(0, {"empty": plain}),
    "slow": Sitting(1, {"loading": loading}, _slow),
    "dead": Sitting(
        1,
        {"no-engine": plain},
        lambda: {"backend": Device([rest()], trouble=ModelNotFound("no folder"))},
    ),
    "tour": Sitting(0, {"tour": tour, "tour-page": tour_page}, lambda: {"tour": True}),
}
