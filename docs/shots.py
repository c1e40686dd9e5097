"""Take the screenshots of docs/pictures from the program, with the built-in model running: make shots."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

os.environ |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", "TEXTUAL_ANIMATIONS": "none"}
os.environ.pop("NO_COLOR", None)

from textual.pilot import Pilot

from engine.api.config import EngineConfig
from engine.api.params import SamplingParams
from minichat.app import MinichatApp
from minichat.chats.model import Message
from minichat.chats.store import Store
from minichat.clients.local import LocalBackend
from minichat.features.decoding.feature import DecodingPanel
from minichat.features.picking.line import TokenPicker
from minichat.features.tour.pages import BLOCKS
from minichat.settings import load
from minichat.shell.paths import locate
from minichat.shell.terminal import Terminal
from minichat.start import Start
from minichat.ui.picture import picture

PICTURES = Path(__file__).parent / "pictures"
TIMEOUT = 120.0  # seconds
STORIES = ("a fox", "a hare", "an owl", "a bear")
USUAL = SamplingParams(temperature=0.7, top_p=0.95, seed=7)


class Session:
    """The running program, and its visible state."""

    def __init__(self, app: MinichatApp, pilot: Pilot[object]) -> None:
        self.app, self.pilot = app, pilot

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(TIMEOUT):
            while not holds():
                await self.pilot.pause(0.02)

    async def say(self, text: str) -> None:
        self.app.main.prompt.put(text)
        await self.pilot.press("enter")

    async def ask(self, question: str) -> None:
        """Send a question and wait for the reply."""
        after = len(self.messages) + 2
        await self.say(question)
        await self.until(lambda: len(self.messages) == after and self.messages[-1].state == "done")
        await self.until(lambda: not self.tokens())

    async def explain(self) -> None:
        for question in ("What is the KV cache?", "What is a KV block?"):
            await self.ask(question)

    @property
    def messages(self) -> list[Message]:
        """Of the active chat."""
        return self.app.chats.active.chat.messages

    def tokens(self) -> list[int]:
        """How many each chat that is answering has written."""
        return [each.run.tokens for each in self.app.chats if each.run is not None]

    async def take(self, name: str) -> None:
        await self.pilot.pause(0.3)
        columns, lines = self.app.size
        text = picture(self.app, f"minichat, {columns} x {lines}")
        (PICTURES / f"{name}.svg").write_text(text, encoding="utf-8")
        print(f"{name}.svg  {len(text):,} bytes")


@asynccontextmanager
async def program(
    size: tuple[int, int], *, theme: str = "minichat-dark", blocks: int = 512, tour: bool = False
) -> AsyncIterator[Session]:
    """With a home of its own, which is gone afterwards."""
    with tempfile.TemporaryDirectory() as home:
        paths = locate({"HOME": home})
        paths.settings.parent.mkdir(parents=True)
        paths.settings.write_text(f'[screen]\ntheme = "{theme}"\n')
        params = SamplingParams() if tour else USUAL
        here = Terminal(ssh=False, tmux=False, unicode=True)
        start = Start(
            model="pocket", paths=paths, terminal=here, params=params, loaded=load(paths.settings), tour=tour
        )
        backend = LocalBackend(EngineConfig(model="pocket", device="cpu", blocks=blocks))
        store = Store(paths.chats)
        app = MinichatApp(backend, store, start)
        async with app.run_test(size=size) as pilot:
            session = Session(app, pilot)
            await session.until(lambda: app.lifecycle.alive)
            yield session
            for each in app.chats.streaming:
                each.stop()
            await session.until(lambda: not app.chats.streaming)
        backend.close()
        store.close()


async def stories(it: Session, count: int) -> None:
    """Several chats, each asked for a story, all of them answering."""
    for _ in STORIES[1:count]:
        await it.pilot.press("ctrl+n")
    for chat, who in zip(it.app.chats, STORIES, strict=False):
        chat.tune(USUAL.changed(ignore_eos=True))  # none has ended when the picture is taken
        chat.send(f"Tell me a story about {who}.")
    await it.until(lambda: len(it.tokens()) == count and min(it.tokens()) > 20)


async def drawers() -> None:
    """F3 in the middle of a reply, which is not forced on past its end; F4."""
    async with program((120, 40)) as it:
        await it.pilot.press("f3")
        it.app.chats.active.send("Tell me a story about a fox.")
        await it.until(lambda: it.app.chats.active.likely and max(it.tokens(), default=0) > 20)
        await it.take("decoding-120x40")
        await it.pilot.press("f4")
        await it.take("quantization-120x40")


async def strategies() -> None:
    """A search in the middle of a reply; along the tokens of one."""
    async with program((120, 40)) as it:
        it.app.chats.active.tune(SamplingParams(beams=4, ignore_eos=True))
        await it.say("Tell me a story about an owl.")
        await it.pilot.press("f3")
        await it.until(
            lambda: len(it.app.context.part(DecodingPanel).beams.lines) > 4 and max(it.tokens()) > 20
        )
        await it.take("beams-120x40")
    async with program((120, 40)) as it:
        await it.ask("Tell me a story about an owl.")
        await it.pilot.press("alt+c")
        line = it.app.main.pane.query_one(TokenPicker)
        await it.until(lambda: line.rows and all(line.shares[at] is not None for at in line.seen()))
        line.action_move(min(line.seen(), key=lambda at: line.shares[at] or 1.0))
        await it.until(lambda: line.rows and line.rows[line.choice].chosen)
        await it.take("tokens-120x40")


async def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    async with program((300, 60)) as it:
        await stories(it, 4)
        await it.take("four-chats-300x60")
    async with program((200, 60)) as it:
        await stories(it, 4)
        await it.take("chats-200x60")
    async with program((120, 40)) as it:
        await it.explain()
        await it.take("chat-120x40")
    async with program((120, 40), theme="minichat-light") as it:
        await stories(it, 2)
        await it.take("light-120x40")
    async with program((80, 24)) as it:
        await it.explain()
        await it.take("chat-80x24")
    await drawers()
    await strategies()
    async with program((120, 40), blocks=BLOCKS, tour=True) as it:
        await it.until(lambda: it.app.main.query("TourPanel"))
        await it.pilot.press("enter", "enter")
        await it.until(lambda: "was admitted" in picture(it.app))
        await it.pilot.press("enter", "enter")
        await it.until(lambda: "were in" in picture(it.app))
        await it.take("tour-120x40")


if __name__ == "__main__":
    asyncio.run(main())
