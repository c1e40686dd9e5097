"""Counts the tokens of the typed message, and checks before it is sent that it fits and its files exist."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from textual.timer import Timer

from engine.api.errors import MORE_CONTEXT, EngineError
from engine.api.params import SamplingParams
from minichat.chats.model import Attachment
from minichat.clients.bridge import in_thread
from minichat.features.feature import Context
from minichat.notices import capitalized
from minichat.session.attachments import CannotAttach, Missing, attach, missing
from minichat.session.conversation import Conversation
from minichat.session.fitting import PromptFit, fit_of, small
from minichat.shell.background import begin
from minichat.ui.transcript.glyphs import one_line

_LATE = 0.2  # seconds from a key to the check
_PAUSE = 1.0  # without a key, until a large text is checked: that may take as long
_LARGE = 100_000  # characters; more take a while to count
_TYPED = 20  # characters that a text may differ by from the one whose tokens are shown

_Chats = tuple[tuple[Conversation, SamplingParams, str], ...]
_About = tuple[str, tuple[Attachment, ...], str, int, _Chats]


@dataclass(frozen=True, slots=True)
class Checked:
    """A message's files and its tokens. Empty: nothing is typed, or no engine can count."""

    fit: PromptFit | None = None  # in the chat where the least is left
    missing: tuple[Missing, ...] = ()
    refusal: str = ""  # why its files cannot be attached
    counting: bool = False  # a long message, whose tokens are not known yet

    @property
    def faulty(self) -> bool:
        return bool(self.missing or self.refusal) or (self.fit is not None and not self.fit.fits)

    def __str__(self) -> str:
        if self.missing:
            return str(self.missing[0])
        if self.refusal:
            return self.refusal
        if self.fit is None:
            return "counting its tokens" if self.counting else ""
        return f"{self.fit.tokens:,} of {self.fit.room:,} tokens" if self.fit.fits else str(self.fit)


class Composing:
    """Checks the prompt a moment after it changes. No timer runs while nothing is typed."""

    def __init__(self, context: Context) -> None:
        self.checked = Checked()
        self._context = context
        self._timer: Timer | None = None
        self._counted = 0  # characters of the text that was checked
        self._engine = ("", 0)  # the model with its form, and the most tokens that it takes
        self._about: _About | None = None  # what was counted last
        self._fit: PromptFit | None = None  # the result, in the chat where the least is left
        self._warned = ""  # the text whose missing files the user was warned about
        self._notice = ""  # the warning
        self._before = set[asyncio.Task[Checked]]()  # the checks of messages that are being sent
        self._over = False

    def note(self) -> None:
        """Schedule a check: the text has changed, or what it may take."""
        if self._notice and self._context.workspace.prompt.message != self._warned:
            self._context.app.end_notice(self._notice)  # it is about another text
            self._notice = ""
        if (text := self._context.workspace.prompt.text).strip():
            if abs(len(text) - self._counted) > _TYPED and self.checked != Checked():
                self._show(Checked())  # a text was pasted or removed
            large = len(text) > _LARGE
            if self._timer is None:
                self._timer = self._context.app.set_timer(_PAUSE if large else _LATE, self._begin)
            elif large:
                self._timer.reset()
        elif self.checked != Checked():
            self._show(Checked())

    def note_engine(self, facts: str, limit: int) -> None:
        """Schedule a check if the model or its limit has changed: the engine may be another one."""
        if (facts, limit) != self._engine:
            self._engine = facts, limit
            self.note()

    def refused(self, text: str) -> bool:
        """Say why the text cannot be sent, if it has been found too long. Nothing is counted again."""
        fit = self._fit
        if fit is None or fit.fits or "@" in text or self._about != self._what(text, self._to):
            return False
        self._context.program.report(fit.refusal(self._larger))
        return True

    async def may_send(self, text: str, to: Sequence[Conversation]) -> bool:
        """Return whether the text can be sent. If not, say why; missing files are reported once."""
        if self._context.lifecycle.refuses():
            return False
        if not self._may_fail(text, to):
            self._warned = ""
            return True
        before = asyncio.create_task(self._check(text, to), name="check")
        self._before.add(before)
        before.add_done_callback(self._before.discard)
        try:
            checked = await before
        except asyncio.CancelledError:
            if self._over:
                return False
            raise
        if checked.refusal:
            self._context.program.report(one_line(checked.refusal))
            return False
        if checked.missing and text != self._warned:
            self._warned, self._notice = text, self._warning(checked.missing)
            self._context.app.notify(self._notice, severity="warning", timeout=8)
            return False
        if checked.fit is not None and not checked.fit.fits:
            self._context.program.report(checked.fit.refusal(self._larger))
            return False
        if checked.missing:
            self._context.app.end_notice(self._notice)
        self._warned = ""
        return True

    def _warning(self, files: Sequence[Missing]) -> str:
        names, send = "; ".join(map(str, files)), self._context.keys.name("prompt.send")
        stop = "" if names.endswith("?") else "."
        what = "it" if len(files) == 1 else "them"
        return capitalized(one_line(f"{names}{stop} Press {send} again to send without {what}"))

    async def stop(self) -> None:
        """Give up a message that is being checked, so that quitting does not wait for a slow folder."""
        self._over = True
        if checks := set(self._before):
            for each in checks:
                each.cancel()
            await asyncio.wait(checks)

    @property
    def _larger(self) -> str:
        """How more tokens would fit, if the engine is our own."""
        shot = self._context.engine.latest
        if self._context.program.backend.elsewhere or shot is None:
            return ""
        if shot.context_bound != "model":
            return MORE_CONTEXT[shot.context_bound]
        return f"choose a larger model ({self._context.keys.name('model.pick')})"

    def _may_fail(self, text: str, to: Sequence[Conversation]) -> bool:
        """Whether it names files or may be too long, so that it is checked before it is sent."""
        shot = self._context.engine.latest
        large = shot is not None and not all(small(each, text, shot) for each in to)
        return "@" in text or large

    def _begin(self) -> None:
        self._timer = None
        begin(self._context.app, self._look, group="composing", exclusive=True)

    async def _look(self) -> None:
        workspace = self._context.workspace
        text = workspace.prompt.text
        message = workspace.prompt.message
        if len(text) > _LARGE:
            self._show(Checked(counting=True))
        checked = await self._check(message, self._to) if text.strip() else Checked()
        if message.endswith("/"):  # of a folder: the rest of a file's name may follow
            wrong = (each for each in checked.missing if not (each.folder and message.endswith(each.name)))
            checked = replace(checked, missing=tuple(wrong))
        if workspace.prompt.text == text:
            self._counted = len(text)
            self._show(checked)

    def _show(self, checked: Checked) -> None:
        self.checked = checked
        self._context.workspace.label()

    @property
    def _to(self) -> Sequence[Conversation]:
        return self._context.workspace.recipients

    def _what(self, text: str, to: Sequence[Conversation], files: Sequence[Attachment] = ()) -> "_About":
        """What the count of a message depends on."""
        shot = self._context.engine.latest if self._context.lifecycle.alive else None
        engine = ("", 0) if shot is None else (shot.model, shot.max_context)
        return text, tuple(files), *engine, tuple((each, each.chat.params, each.chat.system) for each in to)

    async def _check(self, text: str, to: Sequence[Conversation]) -> Checked:
        """Look for the files in a thread: a network folder may be slow."""
        kept = [*self._context.program.start.first.piped, *to[0].files()]
        wrong, files, refusal = tuple[Missing, ...](), tuple[Attachment, ...](), ""
        if "@" in text:
            wrong = await in_thread(lambda: missing(text, kept))
            try:
                files = await in_thread(lambda: attach(text, kept, warned=True))
            except CannotAttach as error:
                refusal = str(error)
        about, shot = self._what(text, to, files), self._context.engine.latest
        if about != self._about:
            self._about, self._fit = None, None
            if shot is not None and self._context.lifecycle.alive:
                with suppress(EngineError):  # no engine: the reply reports the error
                    fits = [await fit_of(each, text, files, shot) for each in to]
                    self._about, self._fit = about, min(fits, key=lambda fit: fit.left, default=None)
        return Checked(self._fit, wrong, refusal)
