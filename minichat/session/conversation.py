"""A chat and its running reply: sending, streaming, stopping and saving."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from engine.api.commands import Abort, Update
from engine.api.errors import EngineError
from engine.api.events import Delta, TokenLogprob
from engine.api.params import SamplingParams
from engine.api.request import Finish
from minichat.chats.errors import StoreError
from minichat.chats.letters import color_index
from minichat.chats.model import Attachment, Chat, Message, State, own_title, title_from
from minichat.chats.versions import Versions
from minichat.clients.protocol import Past, Reply
from minichat.session.background_calls import BackgroundCalls
from minichat.session.decoding import changed_from_default
from minichat.session.divergence import MOST, Comparison
from minichat.session.resuming import tag_of, unfinished
from minichat.session.run import NEVER_SENT, ConversationView, RunningReply
from minichat.session.services import ChatServices
from minichat.session.strategies import Strategies
from minichat.session.traces import Trace
from minichat.session.turns import Reading

log = logging.getLogger("minichat.app")

_END_WITHIN = 1.0  # seconds a reply may take to end
_STREAMING: Any = {"state": "streaming", "error": "", "interrupted": False}
_SAVE_EVERY = 1.0  # seconds of streaming that a crash may lose
_TRACES = 16  # requests of a chat whose text can be mapped to blocks
_THOUGHT_SHOWN = 160  # characters of reasoning shown while streaming

Begin = Callable[[RunningReply, SamplingParams], Awaitable[Reply]]  # starts the request on the engine


class Conversation:
    """The model of one chat. All user actions on it are methods; views only display it."""

    def __init__(self, chat: Chat, services: "ChatServices[Conversation]") -> None:
        self.chat, self.services, self.reading = chat, services, Reading(chat, services)
        self.versions = Versions(chat, services.store)
        self.view: ConversationView | None = None
        self.run: RunningReply | None = None
        self.editing = chat.edit.message if chat.edit else None  # the message that the next send replaces
        self.edited = chat.edit.text if chat.edit else ""  # what it is replaced by, as far as it is typed
        self.likely: TokenLogprob | None = None  # alternatives to the newest token
        self.unread = False  # whether a reply has ended that no screen has shown
        self.watching = False  # whether the likeliest tokens are shown
        self.compared: Comparison[Conversation] | None = None  # a comparison with other chats
        self.traces: dict[int, Trace] = {}  # by id, of the newest requests
        self.strategies = Strategies(chat.own_params)  # the last settings of each strategy
        self._background = BackgroundCalls()

    @property
    def streaming(self) -> bool:
        return self.run is not None

    @property
    def messages(self) -> list[Message]:
        """The loaded messages, including the text of a running reply."""
        if self.run is None:
            return self.chat.messages
        return [*self.chat.messages[:-1], self._written(self.run)]

    @property
    def newest(self) -> int:
        """The id of the last message; 0 if there is none."""
        return self.chat.messages[-1].id if self.chat.messages else 0

    @property
    def color(self) -> int:
        return color_index(self.chat.letter)

    # User actions

    def send(self, text: str, attachments: tuple[Attachment, ...] = (), *, replace: bool = True) -> None:
        """Send a message and start a reply. If a message is being edited, `replace` it."""
        if self.streaming:
            return
        messages, edited = self.chat.messages, self.editing if replace else None
        own = own_title(self.chat.title, messages[0].text if messages else "")
        first = not self.chat.earlier and (not messages or messages[0].id == edited)
        title = title_from(text) if first and not own else None
        self._answer(Message(0, "user", text, attachments=attachments), instead_of=edited, title=title)

    def retry(self, message_id: int | None = None) -> bool:
        """Regenerate the last or given reply and remove what follows. Answer a last message that has none."""
        replies = [message.id for message in self.chat.messages if message.role == "assistant"]
        wanted, unanswered = message_id or self.newest, message_id is None and self.newest not in replies
        if self.streaming or not wanted or not (unanswered or wanted in replies):
            return False
        self._answer(instead_of=None if unanswered else wanted)
        return True

    def edit(self, message_id: int | None = None) -> str | None:
        """Start editing the given or newest user message, which the next send replaces. Return its text."""
        own = [message for message in self.chat.messages if message.role == "user"]
        found = [message for message in own if message_id in (None, message.id)]
        if self.streaming or not found:
            return None
        if self.editing != found[-1].id:
            self.editing, self.edited = found[-1].id, found[-1].text
        return self.edited

    def files(self) -> tuple[Attachment, ...]:
        """The attachments of the edited message; their files may no longer exist."""
        return next((each.attachments for each in self.chat.messages if each.id == self.editing), ())

    def stop(self) -> bool:
        """Stop the running reply and keep its text."""
        if self.run is None or self.run.stopping:
            return False
        self.run.stopping = True
        if self.run.reply is not None:
            self._background.send(self.services.backend.send(Abort((self.run.reply.id,))))
        elif self.run.task is not None and not self.services.ready.is_set():
            self.run.task.cancel()
        return True

    def tune(self, params: SamplingParams) -> None:
        """Change the sampling parameters from the next token on."""
        self._update_request(self._set_params(params))

    def watch(self, on: bool) -> None:
        """Turn requests for the likeliest tokens on or off."""
        if on == self.watching:
            return
        self.watching, self.likely = on, None
        self._update_request()

    def compare(self, comparison: "Comparison[Conversation]") -> None:
        """Compare the next reply with those of other chats, including alternative tokens."""
        self.compared = comparison

    def _request_params(self) -> SamplingParams:
        """The parameters to request: with the likeliest tokens if they are shown."""
        params, looked_at = self.chat.params, self.watching or self.compared is not None
        return params.changed(logprobs=MOST) if looked_at and params.beams == 1 else params

    def _set_params(self, params: SamplingParams) -> SamplingParams:
        """Set the parameters that differ. Return the former ones."""
        former, self.chat.params = self.chat.params, params  # also if they cannot be stored
        self.chat.params = self.services.store.tune(self.chat.id, former, params, self.strategies.own)
        self.services.changed(self)
        return former

    def _update_request(self, before: SamplingParams | None = None) -> None:
        """Update the running request to the current parameters; revert to `before` if the engine refuses."""
        if (run := self.run) is None or run.reply is None:
            return
        sent, id = run.sent, run.reply.id
        if not (changes := run.changes_for(self._request_params())):
            return

        def back(why: str) -> None:
            run.sent = sent
            if before is not None:
                self._set_params(before)
            self.services.report(why)

        noted = partial(run.note_params, run.sent)
        self._background.send_in_order(self.services.backend.send(Update(id, changes)), back, noted)

    def rename(self, title: str) -> None:
        self.chat.title = title
        self.services.store.rename(self.chat.id, title)
        self.services.changed(self)

    def instruct(self, system: str) -> None:
        """Change the system prompt from the next reply on."""
        self.chat.system = system
        self.services.store.change_chat(self.chat.id, system=system)
        self.services.changed(self)

    def read_older(self, count: int) -> list[Message]:
        """Load older messages from the store."""
        chat = self.chat
        older = self.services.store.older(chat.id, chat.messages[0].id, count) if chat.earlier else []
        chat.messages[:0], chat.earlier = older, chat.earlier - len(older)
        return older

    def keep(self) -> None:
        """Save the received text, from any thread, because the program is ending."""
        if (run := self.run) is not None:
            state: State = "streaming" if self._stays(run) else "stopped"
            with suppress(StoreError):
                self.services.store.update(replace(self._written(run), state=state))

    async def stop_and_wait(self) -> None:
        """Stop the reply, and wait until its text is saved."""
        if (run := self.run) is None or (task := run.task) is None:
            return
        run.spreads = False
        self.stop()
        await asyncio.wait({task}, timeout=_END_WITHIN)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def shut_down(self) -> None:
        """Prepare for the end of the program. A reply that outlives it is left for the next screen."""
        run = self.run
        if run is None or run.task is None or not self._stays(run):
            await self.cut_short("" if run is None or run.reply is not None else NEVER_SENT)
            return
        await run.arrival(run.task, _END_WITHIN)
        run.left = True
        run.task.cancel()
        await asyncio.gather(run.task, return_exceptions=True)

    def _stays(self, run: RunningReply) -> bool:
        """Whether an engine that outlives the screen has the reply or is just receiving it."""
        return run.stays and not run.stopping and (run.reply is not None or self.services.ready.is_set())

    async def cut_short(self, reason: str) -> None:
        """The engine is going away: save the text with the reason."""
        if self.run is not None:
            self.run.reason = reason
            await self.stop_and_wait()

    # The reply

    async def resume(self) -> None:
        """Continue a reply that an earlier screen started, or return to the one that it replaces."""
        last = self.chat.messages[-1] if self.chat.messages else None
        if self.streaming or last is None or not unfinished(last):
            return
        past = await self.services.backend.resume(tag_of(last))
        if self.chat.messages[-1] is not last:  # the chat has changed
            return
        if past is not None:
            message = self.chat.messages[-1] = replace(last, **_STREAMING)
            self._run(message, partial(self._read_on, past))
        if past is not None or (last.interrupted and self.versions.restore()):
            self.show_messages()

    async def _read_on(self, past: Past, run: RunningReply, params: SamplingParams) -> Reply:
        run.go_on(past, self.services.clock())
        run.sent = self.chat.params  # the likeliest tokens are not requested yet
        prompt, parts = self.reading.prompt()
        self.trace(run, run.new_trace(past.reply, prompt, parts))
        return past.reply

    def _restart_text(self, run: RunningReply) -> None:
        """Clear the message, because its text will be streamed again from the start."""
        run.stale = False
        run.message = self.chat.messages[-1] = replace(run.message, text="", reasoning="")
        self.show_messages()

    def go_on(self, begin: Begin) -> None:
        """Continue the last message, a copy from another chat, from a position inside it."""
        message = replace(self.chat.messages[-1], text="", reasoning="", stats=None, **_STREAMING)
        self._save(message)
        self.show_messages()
        self._run(message, begin)

    def set_prefix(self, run: RunningReply, count: int, text: str) -> None:
        """Record the tokens of a reply that precede the engine's continuation."""
        run.pieces, run.tokens, run.copied = [(count, text)], count, count
        if (added := run.parts.push(text)) and self.view is not None:
            self.view.add_text(added, "")

    def _answer(self, *said: Message, instead_of: int | None = None, title: str | None = None) -> None:
        """Add these messages and start a reply. `instead_of` deletes that message and all after it first."""
        chat, params = self.chat, changed_from_default(self.chat.params)
        turn = (*said, Message(0, "assistant", "", state="streaming", params=params))
        added = self.services.store.add_turn(chat.id, self.newest, turn, instead_of=instead_of, title=title)
        chat.title = chat.title if title is None else title
        self.editing = None if self.editing == instead_of else self.editing
        self.versions.begin(instead_of)
        if instead_of is not None:
            self.show_messages()
        for message in added:
            self._append(message)
        self._run(added[-1], self._submit)

    def _run(self, message: Message, begin: Begin) -> None:
        now, new = self.services.clock(), self.services.defaults
        self.run = RunningReply(message, now, saved=now, adapter=self.chat.adapter, new=new)
        self.run.task = asyncio.create_task(self._follow(self.run, begin), name=f"reply-{self.chat.letter}")
        self.services.changed(self)

    async def _submit(self, run: RunningReply, params: SamplingParams) -> Reply:
        run.stays = bool(self.services.backend.elsewhere)
        reply, prompt, parts = await self.reading.submit(params, tag_of(run.message), run.adapter)
        run.leave_out(self.reading.left_out)
        run.bound = self.reading.bound
        self.trace(run, run.new_trace(reply, prompt, parts))
        return reply

    async def _follow(self, run: RunningReply, begin: Begin) -> None:
        """Follow a request from submission to its end, including errors."""
        finish, error = Finish.ABORTED, ""
        try:
            await self.services.ready.wait()
            run.sent, requested = self._request_params(), self.chat.params
            run.parts.opened = run.sent.grammar is None and self.services.backend.opens_thinking
            run.accepted(reply := await begin(run, run.sent))
            self.services.took(self, reply.id)
            self._update_request(requested)  # the user may have changed them during the submission
            if run.stopping:
                self._background.send(self.services.backend.send(Abort((reply.id,))))
            async for batch in reply.batches(self.services.pacer.wait):
                if ours := run.ours(batch):
                    self._take(run, ours)
                    finish, error = ours[-1].finish or finish, ours[-1].error
        except EngineError as trouble:
            finish, error = run.ended_by(trouble)
        except Exception as trouble:  # a bug: show it at the reply and keep running
            log.exception("a reply failed")
            finish, error = Finish.FAILED, f"{type(trouble).__name__}: {trouble}"
        finally:
            self._settle(run, finish, error)

    def _take(self, run: RunningReply, batch: list[Delta]) -> None:
        if run.stale:
            self._restart_text(run)
        now = self.services.clock()
        fresh = [delta for delta in batch if delta.tokens]
        if fresh:
            run.first, run.last = now if run.first is None else run.first, now
        run.tokens += sum(len(delta.tokens) for delta in fresh)
        added = run.parts.push("".join(delta.text for delta in batch))
        run.pieces += [(len(delta.tokens), delta.text) for delta in batch]
        run.trace_text(fresh)
        logprobs = [one for delta in batch for one in delta.logprobs]
        if self.watching and logprobs:
            self.likely = logprobs[-1]
        if self.view is not None:
            thought = run.parts.reasoning[-_THOUGHT_SHOWN:] if run.parts.thinking else ""
            self.view.add_text(added, thought + batch[-1].tail, reasoning=bool(thought))
        if self.compared is not None:
            self.compared.take(self, logprobs or [token for delta in fresh for token in delta.tokens])
            if self.compared.reached(self):
                self.compared = None
                self._update_request()
        if now - run.saved >= _SAVE_EVERY:
            run.saved = now
            self._save(self._written(run))

    def _settle(self, run: RunningReply, finish: Finish, error: str) -> None:
        if run.left:
            self.run = None
            self._save(self._written(run))
            return
        if (added := run.parts.flush()) and self.view is not None:
            self.view.add_text(added, "")
        run.trace_text()
        message = run.settled(self._written(run), finish, error, run.stats(run.last or self.services.clock()))
        run.finish, self.run, self.unread = finish, None, True
        self.reading.full = finish is Finish.LENGTH and run.sent.max_tokens is None
        compared, self.compared = self.compared, None
        self._save(message)
        if self.view is not None:
            self.view.settle_message(message)
        if finish in (Finish.ABORTED, Finish.FAILED) and self.versions.restore():
            self.show_messages()
            if error:
                self.services.report(f"{self.chat.letter.upper()} keeps the earlier reply: {error}")
        if compared is not None:
            (compared.leave if finish in (Finish.ABORTED, Finish.FAILED) else compared.end)(self)
        self.services.changed(self)
        if run.others and run.spreads and message in self.chat.messages:  # else an earlier one is back
            self.services.spread(self, run.beside(message))

    def _written(self, run: RunningReply) -> Message:
        text, reasoning = run.parts.text, run.parts.reasoning
        return run.message if run.stale else replace(run.message, text=text, reasoning=reasoning)

    def _save(self, message: Message) -> None:
        """Save the message. If the disk fails, report it and continue."""
        self.chat.messages[-1] = message
        try:
            self.services.store.update(message)
        except StoreError as error:
            self.services.report(str(error))

    # The chat behind it

    def trace(self, run: RunningReply, trace: Trace) -> None:
        """Record a request's tokens for later lookups."""
        run.trace = self.traces[trace.request] = trace
        while len(self.traces) > _TRACES:
            del self.traces[next(iter(self.traces))]

    def _append(self, message: Message) -> None:
        self.chat.messages.append(message)
        if self.view is not None:
            self.view.add_message(message)

    def show_messages(self) -> None:
        """Redraw the chat, if it is on the screen. The likely tokens may be those of a reply that is gone."""
        self.likely = None
        if self.view is not None:
            self.view.show_messages()
