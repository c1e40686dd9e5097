"""One chat as it lives: what is sent, the reply that is on its way, and what becomes of it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from engine.api.commands import Abort, Update
from engine.api.errors import EngineError, RequestTooLong
from engine.api.events import Delta, TokenLogprob
from engine.api.params import SamplingParams
from engine.api.request import Finish
from minichat.chats.errors import StoreError
from minichat.chats.letters import colour_index
from minichat.chats.model import Attachment, Chat, Message, State, title_from
from minichat.clients.protocol import Past, Reply
from minichat.session.decoding import changed_from_default
from minichat.session.desk import Desk
from minichat.session.errands import Errands
from minichat.session.parting import MOST, Comparison
from minichat.session.resuming import tag_of, unfinished
from minichat.session.run import ConversationView, RunningReply
from minichat.session.strategies import Strategies
from minichat.session.traces import Trace
from minichat.session.turns import Reading

log = logging.getLogger("minichat.app")

_FAREWELL = 1.0  # seconds that a reply may take to end
_SAVE_EVERY = 1.0  # seconds of streaming that a crash may cost
_TRACES = 16  # requests of a chat whose text can be found in blocks
_THOUGHT_SHOWN = 160  # characters of reasoning that are seen as they come


Begin = Callable[[RunningReply, SamplingParams], Awaitable[Reply]]  # has the engine begin it


class Conversation:
    """Everything a person does to one chat goes through here; the view only draws."""

    def __init__(self, chat: Chat, desk: "Desk[Conversation]") -> None:
        self.chat, self.desk, self.reading = chat, desk, Reading(chat, desk)
        self.view: ConversationView | None = None
        self.run: RunningReply | None = None
        self.editing: int | None = None  # the message that the next send replaces
        self.likely: TokenLogprob | None = None  # the newest token's rivals
        self.unread = False
        self.watching = False  # somebody looks at the likeliest tokens
        self.compared: Comparison[Conversation] | None = None  # with the replies of other chats
        self.traces: dict[int, Trace] = {}  # of the newest requests, by their numbers
        self.strategies = Strategies()  # how each was set here
        self._errands = Errands()

    @property
    def streaming(self) -> bool:
        return self.run is not None

    @property
    def messages(self) -> list[Message]:
        """Those that are here, with all that has come of a running reply."""
        if self.run is None:
            return self.chat.messages
        return [*self.chat.messages[:-1], self._written(self.run)]

    @property
    def colour(self) -> int:
        return colour_index(self.chat.letter)

    # What a person does

    def send(self, text: str, attachments: tuple[Attachment, ...] = ()) -> None:
        """A message of the person's, and the reply to it. While one is edited, it takes that one's place."""
        if self.streaming:
            return
        if self.editing is not None:
            self._cut(self.editing)
            self.editing = None
        if not self.chat.messages and not self.chat.earlier:
            self.rename(title_from(text))
        self._append(self.desk.store.append(self.chat.id, "user", text, attachments=attachments))
        self._answer()

    def retry(self, message_id: int | None = None) -> bool:
        """The newest reply, or the given one with all after it, is generated anew."""
        replies = [message for message in self.chat.messages if message.role == "assistant"]
        wanted = [message for message in replies if message_id in (None, message.id)]
        if self.streaming or not wanted:
            return False
        self._cut(wanted[-1].id)
        self._answer()
        return True

    def edit(self, message_id: int | None = None) -> str | None:
        """The text of the message that the next send replaces: the person's newest, or the given one."""
        own = [message for message in self.chat.messages if message.role == "user"]
        wanted = [message for message in own if message_id in (None, message.id)]
        if self.streaming or not wanted:
            return None
        self.editing = wanted[-1].id
        return wanted[-1].text

    def files(self) -> tuple[Attachment, ...]:
        """What goes with the message that is edited: it may be nowhere else any more."""
        edited = [message.attachments for message in self.chat.messages if message.id == self.editing]
        return edited[0] if edited else ()

    def stop(self) -> bool:
        """Ends the reply that runs; what has come stays."""
        if self.run is None or self.run.stopping:
            return False
        self.run.stopping = True
        if self.run.reply is not None:
            self._errands.send(self.desk.backend.send(Abort((self.run.reply.id,))))
        elif self.run.task is not None and not self.desk.ready.is_set():
            self.run.task.cancel()
        return True

    def tune(self, params: SamplingParams) -> None:
        """Other decoding, from the next token on."""
        before = self.chat.params
        self._drawn_by(params)
        self._retell(before)

    def watch(self, on: bool) -> None:
        """Whether the likeliest tokens are asked for."""
        if on == self.watching:
            return
        self.watching, self.likely = on, None
        self._retell()

    def compare(self, comparison: "Comparison[Conversation]") -> None:
        """The next reply is looked at beside others, with the rivals of its tokens."""
        self.compared = comparison

    def _wanted(self) -> SamplingParams:
        """As the engine is asked for it: with the likeliest tokens where somebody looks at them."""
        params, looked_at = self.chat.params, self.watching or self.compared is not None
        return params.changed(logprobs=MOST) if looked_at and params.beams == 1 else params

    def _drawn_by(self, params: SamplingParams) -> None:
        self.chat.params = params
        self.desk.store.change_chat(self.chat.id, params=params)
        self.desk.changed(self)

    def _retell(self, before: SamplingParams | None = None) -> None:
        """Has the running reply go on as it is wanted now; back to `before` where the engine will not."""
        if (run := self.run) is None or run.reply is None:
            return
        told, id = run.told, run.reply.id
        if not (changes := run.retold(self._wanted())):
            return

        def back(why: str) -> None:
            run.told = told
            if before is not None:
                self._drawn_by(before)
            self.desk.complain(why)

        self._errands.send_in_order(self.desk.backend.send(Update(id, changes)), back)

    def rename(self, title: str) -> None:
        self.chat.title = title
        self.desk.store.rename(self.chat.id, title)
        self.desk.changed(self)

    def instruct(self, system: str) -> None:
        """Another system prompt, from the next reply on."""
        self.chat.system = system
        self.desk.store.change_chat(self.chat.id, system=system)
        self.desk.changed(self)

    def read_older(self, count: int) -> list[Message]:
        """Messages before those that are here, from the store."""
        chat = self.chat
        older = self.desk.store.older(chat.id, chat.messages[0].id, count) if chat.earlier else []
        chat.messages[:0], chat.earlier = older, chat.earlier - len(older)
        return older

    def keep(self) -> None:
        """What has come, into the store, from whatever thread: the program ends this moment."""
        if (run := self.run) is not None:
            state: State = "streaming" if self._stays(run) else "stopped"
            with suppress(StoreError):
                self.desk.store.update(replace(self._written(run), state=state))

    async def put_away(self) -> None:
        """The end of this chat: what has come is saved, and the engine is told."""
        if self.run is None or self.run.task is None:
            return
        task = self.run.task
        self.stop()
        await asyncio.wait({task}, timeout=_FAREWELL)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def leave(self) -> None:
        """The end of the program. A reply that the engine goes on with is for the next screen to read."""
        run = self.run
        if run is None or run.task is None or not self._stays(run):
            await self.put_away()
            return
        run.left = True
        await run.arrival(run.task, _FAREWELL)
        run.task.cancel()
        await asyncio.gather(run.task, return_exceptions=True)

    def _stays(self, run: RunningReply) -> bool:
        """Whether it is, or is just being, handed to an engine that outlives the screen."""
        return run.stays and not run.stopping and (run.reply is not None or self.desk.ready.is_set())

    async def cut_short(self, reason: str) -> None:
        """The engine goes: what has come is saved, with the reason."""
        if self.run is not None:
            self.run.reason = reason
            await self.put_away()

    # The reply

    async def resume(self) -> None:
        """Reads on what a screen that is gone has begun, where the engine still knows of it."""
        last = self.chat.messages[-1] if self.chat.messages else None
        if self.streaming or last is None or not unfinished(last):
            return
        past = await self.desk.backend.resume(tag_of(last))
        if past is None or self.chat.messages[-1] is not last:  # the chat has gone on
            return
        message = self.chat.messages[-1] = replace(last, state="streaming", error="")
        self._run(message, partial(self._read_on, past))
        if self.view is not None:
            self.view.show_messages()

    async def _read_on(self, past: Past, run: RunningReply, params: SamplingParams) -> Reply:
        run.go_on(past, self.desk.clock())
        run.told = self.chat.params  # nobody looks at its likeliest tokens yet
        prompt, parts = self.reading.prompt()
        self.trace(run, Trace(past.reply.id, prompt, parts, past.reply.prompt_tokens, run.message.id))
        return past.reply

    def _begin_anew(self, run: RunningReply) -> None:
        """All that has been told of it comes again: what stands there makes way."""
        run.stale = False
        run.message = self.chat.messages[-1] = replace(run.message, text="", reasoning="")
        if self.view is not None:
            self.view.show_messages()

    def go_on(self, begin: Begin) -> None:
        """Its last message is a copy of another chat's, and the engine goes on from somewhere in it."""
        message = replace(
            self.chat.messages[-1], text="", reasoning="", state="streaming", error="", stats=None
        )
        self._save(message)
        if self.view is not None:
            self.view.show_messages()
        self._run(message, begin)

    def said(self, run: RunningReply, count: int, text: str) -> None:
        """So many tokens of a reply are there before the engine goes on with it."""
        run.pieces = [(count, text)]
        added = run.parts.push(text)
        if self.view is not None:
            self.view.add_text(added, "")

    def _answer(self) -> None:
        message = self.desk.store.append(
            self.chat.id, "assistant", "", state="streaming", params=changed_from_default(self.chat.params)
        )
        self._append(message)
        self._run(message, self._submit)

    def _run(self, message: Message, begin: Begin) -> None:
        now = self.desk.clock()
        self.run = RunningReply(message, now, saved=now)
        self.run.task = asyncio.create_task(self._follow(self.run, begin), name=f"reply-{self.chat.letter}")
        self.desk.changed(self)

    async def _submit(self, run: RunningReply, params: SamplingParams) -> Reply:
        run.stays = bool(self.desk.backend.elsewhere)
        reply, prompt, parts = await self.reading.submit(params, tag_of(run.message))
        run.left_out = self.reading.left_out
        self.trace(run, Trace(reply.id, prompt, parts, reply.prompt_tokens, run.message.id))
        return reply

    async def _follow(self, run: RunningReply, begin: Begin) -> None:
        """From the first word to the last, and whatever goes wrong between."""
        finish, error = Finish.ABORTED, ""
        try:
            await self.desk.ready.wait()
            run.told, asked = self._wanted(), self.chat.params
            run.reply = reply = await begin(run, run.told)
            run.handed.set()
            self.desk.took(self, reply.id)
            self._catch_up(run, reply, asked)
            async for batch in reply.batches(self.desk.pacer.turn):
                if ours := run.ours(batch):
                    self._take(run, ours)
                    finish, error = ours[-1].finish or finish, ours[-1].error
        except EngineError as trouble:
            finish, error = Finish.FAILED, str(trouble)
            run.refused = isinstance(trouble, RequestTooLong)
        except Exception as trouble:  # a fault of the program: the person reads it at the reply, and goes on
            log.exception("a reply failed")
            finish, error = Finish.FAILED, f"{type(trouble).__name__}: {trouble}"
        finally:
            self._settle(run, finish, error)

    def _catch_up(self, run: RunningReply, reply: Reply, asked: SamplingParams) -> None:
        """What the person did while the request was on its way to the engine."""
        self._retell(asked)
        if run.stopping:
            self._errands.send(self.desk.backend.send(Abort((reply.id,))))

    def _take(self, run: RunningReply, batch: list[Delta]) -> None:
        if run.stale:
            self._begin_anew(run)
        now = self.desk.clock()
        fresh = [delta for delta in batch if delta.tokens]
        if fresh and run.first is None:
            run.first = now
        run.tokens += sum(len(delta.tokens) for delta in fresh)
        added = run.parts.push("".join(delta.text for delta in batch))
        run.pieces += [(len(delta.tokens), delta.text) for delta in batch]
        if run.trace is not None:
            run.trace.heard(fresh)
            run.trace.begins, run.trace.shown = run.parts.begins, len(run.parts.text)
        rivals = [one for delta in batch for one in delta.logprobs]
        if self.watching and rivals:
            self.likely = rivals[-1]
        if self.view is not None:
            thought = run.parts.reasoning[-_THOUGHT_SHOWN:] if run.parts.thinking else ""
            self.view.add_text(added, thought + batch[-1].tail)
        if self.compared is not None:
            self.compared.take(self, rivals)
            if self.compared.reached(self):
                self.compared = None
                self._retell()
        if now - run.saved >= _SAVE_EVERY:
            run.saved = now
            self._save(self._written(run))

    def _settle(self, run: RunningReply, finish: Finish, error: str) -> None:
        if run.left:
            self.run = None
            self._save(self._written(run))
            return
        added = run.parts.flush()
        if added and self.view is not None:
            self.view.add_text(added, "")
        if run.trace is not None:
            run.trace.begins, run.trace.shown = run.parts.begins, len(run.parts.text)
        stats = run.stats(self.desk.clock(), self.chat.params)
        message = run.settled(self._written(run), finish, error, stats)
        self.run = None
        self.reading.full = finish is Finish.LENGTH and run.told.max_tokens is None
        compared, self.compared = self.compared, None
        self._save(message)
        if self.view is not None:
            self.view.settle_message(message)
        if compared is not None:
            compared.end(self)
        self.desk.changed(self)
        if run.others and not run.stopping:
            self.desk.spread(self, run.beside(message))

    def _written(self, run: RunningReply) -> Message:
        if run.stale:
            return run.message
        return replace(run.message, text=run.parts.text, reasoning=run.parts.reasoning)

    def _save(self, message: Message) -> None:
        """The screen goes on with what it has, whatever becomes of the disk."""
        self.chat.messages[-1] = message
        try:
            self.desk.store.update(message)
        except StoreError as error:
            self.desk.complain(str(error))

    # The chat behind it

    def trace(self, run: RunningReply, trace: Trace) -> None:
        """Which tokens it has read and written, for whoever asks."""
        run.trace = self.traces[trace.request] = trace
        while len(self.traces) > _TRACES:
            del self.traces[next(iter(self.traces))]

    def _append(self, message: Message) -> None:
        self.chat.messages.append(message)
        if self.view is not None:
            self.view.add_message(message)

    def _cut(self, message_id: int) -> None:
        """The message and all after it go."""
        self.desk.store.cut(self.chat.id, message_id)
        self.chat.messages = [message for message in self.chat.messages if message.id < message_id]
        if self.view is not None:
            self.view.show_messages()
