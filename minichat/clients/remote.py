"""A remote engine over HTTP: on another machine, or in a process that outlives the screen."""

import asyncio
import json
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from secrets import token_hex
from types import NoneType
from typing import Any, Protocol, TypeVar

from engine.api.codec import codec
from engine.api.commands import Command, LoadAdapter, decode_result, fields_of, result_of
from engine.api.errors import EngineDead, EngineError, UnknownRequest
from engine.api.events import Delta, Event
from engine.api.layout import PromptLayout
from engine.api.params import SamplingParams
from engine.api.snapshot import Snapshot
from engine.api.wire import check_version, decode_delta, decode_event, decode_snapshot, params_to_json
from minichat.clients.address import Address
from minichat.clients.link import Hello, Link, Stopping
from minichat.clients.protocol import LinkBack, LinkLost, Pace, Past, Progress, Prompt

T = TypeVar("T")
_WORDS = 100_000  # tokens whose text is cached
_ASKED_AT_ONCE = 50_000  # tokens
_REQUESTS = {"id", "ids"}  # fields of commands that name requests


class Home(Protocol):
    """Starts the engine, and detects its end."""

    @property
    def starts(self) -> bool:
        """Whether `ensure` starts it if it is not running; otherwise it raises."""
        ...

    @property
    def replacement(self) -> str:
        """The command that replaces it once it has ended by itself."""
        ...

    async def ensure(self, progress: Progress) -> None:
        """Make sure that the engine is running and ready, or raise."""
        ...

    def gone(self, *, told: bool) -> str:
        """Why the engine has ended; empty while it runs. `told`: its server has said that it ends."""
        ...


class RemoteReply:
    """A reply from the server, resumed at its position after each lost connection."""

    def __init__(self, link: Link, record: dict[str, Any], learn: Callable[[dict[str, str]], None]) -> None:
        self.id: int = record["request"]
        self.prompt_tokens: int = record["prompt_tokens"]
        self.name: str = record["id"]
        self._before: list[Delta] = []  # deltas before its own, for a new reader
        if before := record.get("before"):
            self.prompt_tokens = before["prompt_tokens"]
            if before["tokens"]:
                self._before = [Delta(self.id, tuple(before["tokens"]), before["text"])]
        self._link, self._learn = link, learn
        self._received = 0  # deltas
        self._queue: deque[bytes] = deque()  # decoded when the reader takes them
        self._arrived = asyncio.Event()
        self._trouble: EngineError | None = None

    @property
    def copied(self) -> int:
        """Tokens of the reply that it was forked from."""
        return sum(len(each.tokens) for each in self._before)

    async def batches(self, pace: Pace) -> AsyncIterator[list[Delta]]:
        reader = asyncio.create_task(self._read(), name=f"read-{self.name}")
        try:
            if self._before:
                yield self._before
                await pace()
            while True:
                await self._arrived.wait()
                self._arrived.clear()
                if batch := self._take():
                    yield batch
                    if batch[-1].last:
                        return
                if self._trouble is not None:
                    raise self._trouble
                await pace()
        finally:
            reader.cancel()

    def _take(self) -> list[Delta]:
        deltas = []
        while self._queue:
            answer = check_version("deltas", json.loads(self._queue.popleft()))
            self._learn(answer.get("words", {}))
            deltas += [decode_delta(each) for each in answer["deltas"]]
        return deltas

    async def _read(self) -> None:
        try:
            async for message in self._link.follow(
                f"/engine/replies/{self.name}", lambda: str(self._received)
            ):
                if message.kind == "deltas":
                    self._received = int(message.id)
                    self._queue.append(message.data)
                    self._arrived.set()
        except UnknownRequest:
            self._trouble = EngineDead("the rest is lost: the engine was restarted or dropped the reply")
        except EngineError as error:
            self._trouble = error
        except ValueError as error:
            self._trouble = EngineError(f"cannot read the reply: {error}")
        self._arrived.set()


class RemoteBackend:
    """The client of engine/server. Runs on the screen's loop, and never waits for a step."""

    def __init__(self, address: Address, home: Home | None = None) -> None:
        self._address, self._home = address, home
        self._link = Link(address, self, home.gone) if home else Link(address, self)
        self._boot, self._has_template, self._opens_thinking = "", True, False
        self._handlers: list[Callable[[Sequence[Event]], None]] = []
        self._listener: asyncio.Task[None] | None = None
        self._last_event = ""
        self._replies: dict[int, str] = {}  # tags of this screen's replies, by request id
        self._words: dict[int, str] = {}
        self._learning: set[asyncio.Task[None]] = set()
        self._in_order = asyncio.Lock()  # orders changes: the last one wins
        self._clock = (0.0, 0.0)  # the engine's clock, and ours at the same moment
        self._lost_at = 0.0

    @property
    def elsewhere(self) -> str:
        return self._address.words

    @property
    def starts(self) -> bool:
        return self._home is not None and self._home.starts

    @property
    def replacement(self) -> str:
        return "" if self._home is None or self._home.starts else self._home.replacement

    @property
    def has_template(self) -> bool:
        return self._has_template

    @property
    def opens_thinking(self) -> bool:
        return self._opens_thinking

    # Connection

    async def load(self, progress: Progress) -> Snapshot:
        if self._home is not None:
            self._lost_at = self._lost_at or time.monotonic()
            await self._link.close()  # it would find the next engine while `ensure` still starts it
            try:
                await self._home.ensure(progress)
            except EngineError:
                self._link.await_return()
                raise
        self._take_hello(await self._link.open())
        self._lost_at = 0.0
        self._listen_anew()
        return await self.snapshot()

    def _listen_anew(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
        self._listener = asyncio.create_task(self._listen(), name="events")

    async def switch(self, model: str, progress: Progress) -> Snapshot:
        """Reconnect to a lost engine. A remote engine's model cannot be changed from here."""
        return await self.load(progress)

    def lost(self, why: str, *, stopped: bool) -> None:
        self._lost_at = self._lost_at or time.monotonic()
        stopped = stopped and self._home is not None  # a server elsewhere may also be restarting
        self._emit(LinkLost(0, self._now(), why, stopped=stopped))

    def back(self, hello: Hello) -> None:
        restarted = hello.boot != self._boot
        seconds, self._lost_at = time.monotonic() - self._lost_at, 0.0
        self._take_hello(hello)
        if self._listener is None or self._listener.done():  # the link had ended
            self._listen_anew()
        self._emit(LinkBack(0, self._now(), seconds, restarted))

    def ended(self, why: str, *, answers: bool) -> None:
        self._emit(LinkLost(0, self._now(), why, ended=True, answers=answers))

    def _take_hello(self, hello: Hello) -> None:
        if hello.boot != self._boot:
            self._replies.clear()
            self._words.clear()  # the model may be another one
            self._last_event = hello.last_event  # earlier events are not shown, all later ones are
        self._boot, self._has_template = hello.boot, hello.has_template
        self._opens_thinking = hello.opens_thinking

    # Replies

    async def submit(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        tag: str = "",
        reply_prefix: Sequence[int] = (),
        deadline: float | None = None,
        chat: str = "",
        adapter: str = "",
    ) -> RemoteReply:
        value = prompt if isinstance(prompt, str) else [dict(message) for message in prompt]
        name = tag or token_hex(12)  # makes a repeated request idempotent
        body: dict[str, Any] = {"prompt": value, "params": params_to_json(params), "keep": True, "tag": name}
        body |= {"said": list(reply_prefix)} if reply_prefix else {}
        body |= {"adapter": adapter} if adapter else {}
        body |= {} if deadline is None else {"deadline_ms": 1000 * deadline}
        return self._track(await self._link.ask("POST", "/engine/replies", body))

    async def fork(self, id: int, params: SamplingParams, *, tag: str = "", chat: str = "") -> RemoteReply:
        if id not in self._replies:
            raise UnknownRequest(f"request {id} is not one of this screen's replies")
        body = {"params": params_to_json(params), "keep": True, "tag": tag or token_hex(12)}
        return self._track(await self._link.ask("POST", f"/engine/replies/{self._replies[id]}/fork", body))

    async def resume(self, tag: str) -> Past | None:
        answer = check_version("replies", await self._link.ask("GET", f"/engine/replies?tag={tag}"))
        for record in answer["replies"]:
            reply = self._track(record)
            return Past(reply, record["age"], record["first"], record["lasted"], reply.copied)
        return None

    def _track(self, record: Any) -> RemoteReply:
        reply = RemoteReply(self._link, check_version("reply", record), self._learned)
        self._replies[reply.id] = reply.name
        return reply

    async def send(self, command: Command[T]) -> T:
        """Send a command. Changes are sent in order; queries are not."""
        kind = type(command)
        path, fields = f"/engine/commands/{command.verb}", fields_of(command)
        if self._home is not None and isinstance(command, LoadAdapter) and os.path.isdir(command.path):
            fields["path"] = os.path.abspath(command.path)  # the engine runs in another folder
        if result_of(kind) is NoneType:
            answer = await self._send_in_order(path, fields)
        else:
            answer = await self._link.ask("POST", path, fields)
        result: T = decode_result(kind, check_version("answer", answer).get("result"))
        return result

    async def _send_in_order(self, path: str, fields: Any) -> Any:
        boot = self._boot
        async with self._in_order:
            await self._link.ready()
            if boot != self._boot and fields.keys() & _REQUESTS:  # they may belong to other requests by now
                raise UnknownRequest("the engine was restarted")
            return await self._link.ask("POST", path, fields)

    # Monitoring

    async def snapshot(self) -> Snapshot:
        answer = await self._link.ask("GET", "/engine/snapshot")
        shot = decode_snapshot(answer)
        self._learned(answer.get("words", {}))  # an older server sends none
        self._clock = (shot.at, time.monotonic())
        return shot

    def subscribe(self, handler: Callable[[Sequence[Event]], None]) -> None:
        self._handlers.append(handler)

    async def _listen(self) -> None:
        """Receive the engine's events while the connection is up."""
        try:
            async for message in self._link.follow("/events", lambda: self._last_event):
                if message.kind == "event":
                    self._last_event = message.id
                    self._emit(decode_event(json.loads(message.data)))
                elif message.kind == "ending":
                    self._link.cut(Stopping())
        except EngineDead:
            return  # the link has reported it
        except (EngineError, ValueError) as error:
            self.ended(f"cannot read the engine's events: {error}", answers=True)

    def _emit(self, event: Event) -> None:
        for handler in self._handlers:
            handler([event])

    def _now(self) -> float:
        there, here = self._clock
        return there + time.monotonic() - here

    # Text

    async def forget_chat(self, chat: str) -> bool:
        """The server keeps no blocks by chat."""
        return False

    async def count(self, prompt: Prompt) -> int:
        return len((await self._laid_out(prompt)).ids)

    async def layout(self, prompt: Prompt) -> PromptLayout:
        layout = await self._laid_out(prompt)
        await self._learn(layout.ids)
        return layout

    async def _laid_out(self, prompt: Prompt) -> PromptLayout:
        value = prompt if isinstance(prompt, str) else [dict(message) for message in prompt]
        layout: PromptLayout = codec(PromptLayout).read(
            await self._link.ask("POST", "/engine/layout", {"prompt": value})
        )
        return layout

    async def texts(self, tokens: Sequence[int], after: Sequence[int] = ()) -> list[str]:
        body = {"tokens": list(tokens), "after": list(after)}
        answer = await self._link.ask("POST", "/engine/texts", body)
        await self._learn(tokens)
        return [str(each) for each in answer["texts"]]

    def words(self, tokens: Sequence[int]) -> list[str]:
        """Cached texts; unknown ones are empty and requested in the background."""
        if any(token not in self._words for token in tokens):
            task = asyncio.create_task(self._learn(tokens))
            self._learning.add(task)
            task.add_done_callback(self._learning.discard)
        return [self._words.get(token, "") for token in tokens]

    async def _learn(self, tokens: Sequence[int]) -> None:
        unknown = sorted({token for token in tokens if token not in self._words})
        for at in range(0, len(unknown), _ASKED_AT_ONCE):
            part = unknown[at : at + _ASKED_AT_ONCE]
            with suppress(EngineError):
                answer = await self._link.ask("POST", "/engine/words", {"tokens": part})
                self._learned(dict(zip(map(str, part), answer["words"], strict=True)))

    def _learned(self, words: dict[str, str]) -> None:
        if len(self._words) > _WORDS:
            self._words.clear()
        self._words |= {int(token): word for token, word in words.items()}

    async def detach(self) -> None:
        """Disconnect without stopping the engine."""
        if self._listener is not None:
            self._listener.cancel()
        await self._link.close()

    def close(self) -> bool:
        """The engine keeps running; the sockets end with the program."""
        return True
