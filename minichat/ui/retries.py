"""A failed reply offers no retry that must fail: its message is too long, or a field of it was refused."""

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from engine.api.errors import EngineError
from engine.api.params import SamplingParams
from engine.api.snapshot import Snapshot
from minichat.chats.model import TOO_LONG, Message
from minichat.chats.rows import plain_params
from minichat.features.feature import Context
from minichat.session.conversation import Conversation
from minichat.session.fitting import fit_of, small
from minichat.shell.background import begin


class _Basis(NamedTuple):
    """What decides whether the engine accepts a message."""

    params: SamplingParams
    system: str
    adapter: str
    loaded: bool  # whether the engine has the adapter
    model: str
    context: int  # tokens
    engine: int  # the number of engines before this one

    def accepts(self, field: str, then: "_Basis") -> bool:
        """Whether a message that was refused `then` for this field may be accepted now."""
        return self.model != then.model or self._value(field) != then._value(field)

    def _value(self, field: str) -> object:
        others = {"adapter": (self.adapter, self.loaded), "messages": self.system}
        return others[field] if field in others else getattr(self.params, field, None)


class Retries:
    """Looks at each failed message once per engine and settings; only the newest message can be retried."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engines = 0
        self._seen: dict[int, tuple[int, _Basis]] = {}  # by chat: the message, and when it was looked at

    def forget(self) -> None:
        """Another engine has been started: it may hold longer messages, or shorter ones."""
        self._engines += 1

    def look(self) -> None:
        """Look at the failed messages of the visible chats, if anything has changed."""
        context, shot = self._context, self._context.engine.latest
        if context.lifecycle.alive and shot is not None:
            for each in context.workspace.shown:
                if failed := _failed(each):
                    self._look_at(each, failed, shot)

    def _look_at(self, conversation: Conversation, failed: Message, shot: Snapshot) -> None:
        chat = conversation.chat
        loaded = chat.adapter in {each.name for each in shot.adapters}
        of_chat, of_engine = (chat.params, chat.system, chat.adapter), (shot.model, shot.max_context)
        now = _Basis(*of_chat, loaded, *of_engine, self._engines)
        message, then = self._seen.get(chat.id, (None, now))
        if message != failed.id:
            self._seen[chat.id] = failed.id, now
            if failed.refused:
                return  # the engine has just refused it
            if _invalid_grammar(failed, chat.params):
                self._replace(conversation, failed, "grammar")
                return
        elif then == now or (failed.refused not in ("", TOO_LONG) and not now.accepts(failed.refused, then)):
            return
        self._seen[chat.id] = failed.id, now
        if chat.adapter and not loaded:
            self._replace(conversation, failed, "adapter")
            return
        begin(self._context.app, partial(self._measure, conversation, failed, shot), group="retries")

    async def _measure(self, conversation: Conversation, failed: Message, shot: Snapshot) -> None:
        asked, refused = conversation.chat.messages[-2], ""
        if asked.role == "user" and not small(conversation, asked.whole, shot):
            with suppress(EngineError):  # the retry reports it
                fits = (await fit_of(conversation, asked.text, asked.attachments, shot)).fits
                refused = "" if fits else TOO_LONG
        if conversation.chat.messages[-1] is failed and refused != failed.refused:
            self._replace(conversation, failed, refused)
            self._context.workspace.label()

    def _replace(self, conversation: Conversation, failed: Message, refused: str) -> None:
        message = conversation.chat.messages[-1] = replace(failed, refused=refused)
        if conversation.view is not None:
            conversation.view.settle_message(message)


def _invalid_grammar(failed: Message, params: SamplingParams) -> bool:
    """Whether an earlier engine refused the grammar that the chat still has. Few depend on the engine."""
    held = plain_params(params).get("grammar")
    was = (failed.params or {}).get("grammar")
    return held is not None and held == was and failed.error.startswith("grammar: ")


def _failed(conversation: Conversation) -> Message | None:
    """Its last message, if that failed and has a question before it."""
    messages = conversation.chat.messages
    return messages[-1] if len(messages) > 1 and messages[-1].state == "failed" else None
