"""A running reply, and the interface of its view."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Protocol

from engine.api.errors import FULL, BadParams, ContextBound, EngineError, RequestTooLong
from engine.api.events import Delta
from engine.api.params import FIELDS, SamplingParams
from engine.api.request import Finish
from engine.api.snapshot import RequestView
from engine.api.speculation import Speculation
from minichat.chats.model import TOO_LONG, Message, ReplyStats, State, at_most
from minichat.chats.rows import params_from
from minichat.clients.protocol import Past, Prompt, Reply
from minichat.session.decoding import ReplyLabel, in_words, strategy
from minichat.session.reasoning import ReplyText
from minichat.session.traces import Trace

_STATES: dict[Finish, State] = {
    Finish.STOP: "done",
    Finish.LENGTH: "stopped",
    Finish.ABORTED: "stopped",
    Finish.FAILED: "failed",
}
_WAITED = 3.0  # seconds; many chats that are drawn in turn get their tokens within this
_TAKEN_WITHIN = 0.05  # seconds until text that has arrived is shown and saved
_TAKEN = {"preempted", "swapped"}  # phases of a request without blocks
_STILL = {"waiting", *_TAKEN}
# Beside a message's parameters while it streams, for the next screen: how it is sampled, and what it lacks.
_SAMPLED, _LEFT_OUT = "sampled", "left_out"
NEVER_SENT = "the screen was closed before the engine had the message"  # as the reason of its reply
_SETTLED = ("n", "best_of")  # fixed when a request is submitted; changes apply to the next reply


def state_of(finish: Finish, why: str) -> State:
    """`why`: what ended it; empty if the model did."""
    return "stopped" if finish is Finish.STOP and why else _STATES[finish]


class ConversationView(Protocol):
    """Displays a conversation."""

    def show_messages(self) -> None: ...

    def add_message(self, message: Message) -> None: ...

    def add_text(self, text: str, tail: str, *, reasoning: bool = False) -> None: ...

    def settle_message(self, message: Message) -> None: ...


@dataclass(slots=True)
class Sample:
    """Another reply to the same question, received in the background."""

    parts: ReplyText = field(default_factory=ReplyText)
    tokens: int = 0
    blocks: int = 0
    decoding: float = 0.0  # as `RunningReply.decoding`
    finish: Finish | None = None
    error: str = ""
    stop: str = ""  # as `RunningReply.stop`
    sampled: str = ""  # how, in words, once it has ended

    def take(self, delta: Delta) -> None:
        self.parts.push(delta.text)
        self.tokens += len(delta.tokens)
        self.finish, self.error = delta.finish or self.finish, delta.error
        self.blocks, self.decoding, self.stop = delta.blocks, delta.decoding, delta.stop

    def stats(self, first: ReplyStats) -> ReplyStats:
        """Its own, once it has ended. `first`: those of the first sample, which has the same prompt."""
        seconds = first.ttft + self.decoding if self.decoding else first.seconds
        return replace(
            first,
            tokens=self.tokens,
            seconds=seconds,
            decoding=self.decoding,
            blocks=self.blocks,
            strategy=self.sampled,
        )


class HasEnded(EngineError):
    """The reply to continue from had ended before the engine was asked: its copy is complete."""

    def __init__(self, finish: Finish, error: str) -> None:
        super().__init__(error)
        self.finish = finish


@dataclass(slots=True)
class RunningReply:
    """A streaming reply."""

    message: Message
    began: float
    parts: ReplyText = field(default_factory=ReplyText)
    reply: Reply | None = None
    handed: asyncio.Event = field(default_factory=asyncio.Event)  # the engine has accepted the request
    begun: bool = False  # tokens of it were chosen, perhaps none for certain yet
    first: float | None = None  # the time of its first token
    last: float | None = None  # and of its newest
    tokens: int = 0  # the copied ones, too
    copied: int = 0  # tokens of the reply that it was forked from
    blocks: int = 0  # the last known number of its blocks
    finish: Finish | None = None  # once it has ended
    stop: str = ""  # the stop text that ended it
    taken: str = ""  # "preempted" or "swapped" while the engine has taken them; "waiting": see `waited`
    waited: set[int] = field(default_factory=set)  # rows that did not run; a search waits if they stay so,
    reached: int = 0  # and if its longest row has no more tokens than before
    loaded: tuple[int, str, float] = (0, "", 0.0)  # prompt tokens that a tier had, the tier, seconds saved
    saved: float = 0.0
    bound: ContextBound = "model"  # of the context
    stopping: bool = False
    reason: str = ""  # why it was stopped, unless the user did it
    refused: str = ""  # what the engine refused, as in `Message`
    stays: bool = False  # the engine continues it after the screen closes
    left: bool = False  # the screen is closing
    stale: bool = False  # the displayed text is an earlier screen's and will be streamed again
    decoding: float = 0.0  # seconds from its first token to its last, as the engine says at its end
    speculation: Speculation | None = None  # what its drafts brought, as the engine says at its end
    lasted: float | None = None  # seconds, if it ended while no screen was open
    task: asyncio.Task[None] | None = None
    adapter: str = ""  # that computes it
    new: SamplingParams = field(default_factory=SamplingParams)  # what a new chat has
    left_out: int = 0  # messages at the chat's start that the model has not read
    trace: Trace | None = None
    pieces: list[tuple[int, str]] = field(default_factory=list)  # token counts and texts, as received
    others: dict[int, Sample] = field(default_factory=dict)  # by choice
    spreads: bool = True  # they become forks; not if their chat or the screen is being closed
    sent: SamplingParams = field(default_factory=SamplingParams)  # the parameters last sent to the engine
    replies: int = 1  # `n` when it was submitted
    began_as_search: bool = False
    sampled: ReplyLabel = field(default_factory=ReplyLabel)

    async def arrival(self, task: asyncio.Task[None], within: float) -> None:
        """Wait for the engine to accept the request, because canceling earlier would lose it; then for the
        text that is here, because the engine counts it as read.
        """
        await self._handed_or_over(task, within)
        await asyncio.wait({task}, timeout=_TAKEN_WITHIN)

    async def has_begun(self) -> bool:
        """Wait for the engine to accept the request. False if the reply ended before."""
        if self.task is not None:
            await self._handed_or_over(self.task)
        return self.reply is not None

    async def _handed_or_over(self, task: asyncio.Task[None], within: float | None = None) -> None:
        handed = asyncio.create_task(self.handed.wait())
        await asyncio.wait({task, handed}, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        handed.cancel()

    def accepted(self, reply: Reply) -> None:
        """The engine has accepted the request."""
        self.reply = reply
        if not self.sampled.last:  # else an earlier screen has noted it
            self._note_replies(self.sent)
            self.note_params(self.sent, begun=False)
        self.handed.set()

    def note_params(self, params: SamplingParams, *, begun: bool | None = None) -> None:
        """The engine samples with these parameters from now on."""
        begun = self.begun if begun is None else begun
        goes_on = self.began_as_search and params.beams == 1  # with the best hypothesis alone
        words = strategy(params, self.adapter, 1 if goes_on else self.replies, new=self.new)
        self.sampled.note(words, begun=begun)
        self._note(_SAMPLED, astuple(self.sampled))

    def _note_replies(self, params: SamplingParams) -> None:
        self.replies, self.began_as_search = params.n, params.beams > 1

    def leave_out(self, messages: int) -> None:
        """The model does not read so many messages at the chat's start."""
        self.left_out = messages
        if messages:
            self._note(_LEFT_OUT, messages)

    def _note(self, name: str, value: object) -> None:
        self.message = replace(self.message, params={**(self.message.params or {}), name: value})

    def new_trace(self, reply: Reply, prompt: Prompt, parts: tuple[tuple[int, int], ...]) -> Trace:
        """The trace of the request that computes this reply."""
        return Trace(reply.id, prompt, parts, reply.prompt_tokens, self.message.id, adapter=self.adapter)

    def trace_text(self, fresh: Sequence[Delta] = ()) -> None:
        """Record new tokens of the reply in its trace, and how much of their text is known."""
        if self.trace is not None:
            self.trace.add(fresh)
            self.trace.begins, self.trace.shown = self.parts.begins, len(self.parts.text)

    def see(self, rows: Sequence[RequestView]) -> None:
        """Note which blocks the engine's requests for this reply hold."""
        self.blocks = len({block for row in rows for block in row.blocks})
        waiting = {row.id for row in rows if row.phase in _STILL}
        self.taken = rows[0].phase if rows and all(row.phase in _TAKEN for row in rows) else ""
        reached = max((row.generated for row in rows), default=0)
        if self.searching and waiting & self.waited and reached <= self.reached and not self.taken:
            self.taken = "waiting"
        self.waited, self.reached = waiting, reached

    @property
    def searching(self) -> bool:
        """Whether it is searched with beams now."""
        return (self.sent if self.reply else params_from(self.message.params)).beams > 1

    @property
    def doing(self) -> str:
        """What it does before its first certain token, as at its message in the transcript."""
        if not self.begun:
            return "waiting"
        if self.searching:
            return self.taken or "searching"
        return self.taken or ("thinking" if self.parts.thinking else "writing")

    def changes_for(self, params: SamplingParams) -> dict[str, Any]:
        """The changes to send to the engine for these parameters."""
        before, self.sent = self.sent, params
        named = (name for name in FIELDS if name not in _SETTLED)
        return {name: value for name in named if (value := getattr(params, name)) != getattr(before, name)}

    def ours(self, batch: list[Delta]) -> list[Delta]:
        """The deltas of the displayed reply; others are stored."""
        self.begun = self.begun or not all(delta.of_prompt for delta in batch)
        for delta in batch:
            if delta.choice:
                if delta.choice not in self.others:
                    self.others[delta.choice] = self._sample()
                self.others[delta.choice].take(delta)
                self.others[delta.choice].sampled = str(self.sampled)
            elif delta.finish:
                self.blocks, self.decoding = delta.blocks, delta.decoding
                self.loaded = delta.loaded, delta.tier, delta.saved
                self.speculation, self.stop = delta.speculation, delta.stop
        return [delta for delta in batch if not delta.choice]

    def _sample(self) -> Sample:
        """Another sample, which begins with the same copied tokens."""
        sample = Sample(ReplyText(self.parts.opened), self.copied)
        sample.parts.push(self.pieces[0][1] if self.copied else "")
        return sample

    def beside(self, message: Message) -> list[Message]:
        """The other samples that have ended, as copies of this message; of those stopped, the begun ones."""
        found = []
        for _, each in sorted(self.others.items()):
            begun = each.tokens > self.copied
            if each.finish is not None and (begun or each.finish is not Finish.ABORTED):
                each.parts.flush()
                stats = message.stats and each.stats(message.stats)
                other = replace(message, text=each.parts.text, reasoning=each.parts.reasoning)
                error = each.error or self.why(each.finish, each.stop)
                found.append(replace(other, state=state_of(each.finish, error), stats=stats, error=error))
        return found

    def ended_by(self, trouble: EngineError) -> tuple[Finish, str]:
        """How an error ends the reply."""
        if isinstance(trouble, HasEnded):
            return trouble.finish, str(trouble)
        self.refused = TOO_LONG if isinstance(trouble, RequestTooLong) else trouble.field
        if isinstance(trouble, BadParams) and trouble.field == "said":  # no setting that a user knows
            return Finish.FAILED, f"the start of the reply {trouble.problem}"
        return Finish.FAILED, in_words(trouble)

    def settled(self, message: Message, finish: Finish, error: str, stats: ReplyStats) -> Message:
        """The final message of the reply."""
        error = error or self.why(finish, self.stop)
        noted = (_SAMPLED, _LEFT_OUT)
        params = {name: value for name, value in (message.params or {}).items() if name not in noted}
        ended = replace(
            message, state=state_of(finish, error), error=error, stats=stats, refused=self.refused
        )
        return replace(ended, params=params)

    def why(self, finish: Finish, stop: str) -> str:
        """What ended the reply, if neither the user nor the model did."""
        if finish is Finish.STOP:
            return f"stop text {json.dumps(stop, ensure_ascii=False)} reached" if stop else ""
        if finish is not Finish.LENGTH:
            return self.reason
        most = self.sent.max_tokens
        return FULL[self.bound] if most is None else at_most(most)

    def go_on(self, past: Past, now: float) -> None:
        """Continue a reply that an earlier screen started."""
        self.stays = self.stale = True
        self.began, self.lasted = now - past.age, past.lasted
        self.first = None if past.first is None else self.began + past.first
        self.begun = self.first is not None
        self.copied = past.copied  # the first batch has them
        self.left_out = (self.message.params or {}).get(_LEFT_OUT, 0)
        if noted := (self.message.params or {}).get(_SAMPLED):
            self.sampled = ReplyLabel(*noted)
            self._note_replies(params_from(self.message.params))

    def stats_so_far(self, now: float) -> ReplyStats:
        """Up to the last tokens, which the screen receives in batches, unless it has waited long for more."""
        if self.last is not None and now - self.last < _WAITED:
            now = self.last
        return self.stats(now)

    def stats(self, now: float) -> ReplyStats:
        ttft = (self.first or now) - self.began
        seconds = now - self.began if self.lasted is None else self.lasted
        if self.decoding:  # the link may have been cut meanwhile
            seconds = min(seconds, ttft + self.decoding)
        return ReplyStats(
            tokens=self.tokens,
            seconds=seconds,
            ttft=ttft,
            prompt_tokens=self.reply.prompt_tokens if self.reply else 0,
            strategy=str(self.sampled)
            or strategy(params_from(self.message.params), self.adapter, new=self.new),
            left_out=self.left_out,
            blocks=self.blocks,
            loaded=self.loaded[0],
            tier=self.loaded[1],
            saved=self.loaded[2],
            copied=self.copied,
            decoding=self.decoding,
        )
