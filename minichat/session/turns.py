"""What the model reads: all that was said in a chat before the reply that is wanted, or its newer part."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from engine.api.errors import RequestTooLong
from engine.api.params import SamplingParams
from minichat.chats.model import Chat, Message
from minichat.chats.store import Store
from minichat.clients.protocol import Prompt, Reply
from minichat.plural import plural
from minichat.session.desk import Desk

Parts = tuple[tuple[int, int], ...]  # of the prompt: the id of each message, -1 for none, and its length


def prompt_of(chat: Chat, store: Store, *, template: bool, left_out: int = 0) -> tuple[Prompt, Parts]:
    """The prompt, and of whom its parts are. Without a template it is the messages' texts."""
    said = _said(chat, store)[left_out:]
    if not template:
        return "".join(each.whole for each in said), tuple((each.id, len(each.whole)) for each in said)
    opening = [{"role": "system", "content": chat.system}] if chat.system else []
    said = [message for message in said if message.text]
    turns = [{"role": message.role, "content": message.whole} for message in said]
    own = [(-1, 0) for _ in opening]
    return [*opening, *turns], (*own, *((each.id, len(each.whole)) for each in said))


class Reading:
    """How far back the model reads in a chat: to its beginning, until it outgrows what the model holds.

    Then the older half is left out, and again: what stays is the same for many turns, and found in the cache.
    """

    def __init__(self, chat: Chat, desk: Desk[Any]) -> None:
        self._chat, self._desk = chat, desk
        self.left_out = 0  # messages at the beginning
        self.full = False  # the last reply was cut, since no more could be held

    def begin_anew(self) -> bool:
        """Another engine may hold more. Whether a message that was refused may be tried again."""
        self.left_out, messages = 0, self._chat.messages
        refused = any(each.refused for each in messages)
        messages[:] = [replace(each, refused=False) for each in messages]
        return refused

    def prompt(self) -> tuple[Prompt, Parts]:
        template = self._desk.backend.has_template
        return prompt_of(self._chat, self._desk.store, template=template, left_out=self.left_out)

    async def submit(self, params: SamplingParams, tag: str) -> tuple[Reply, Prompt, Parts]:
        """The reply that the engine begins, and to what. A message that is too long alone is refused."""
        said = _said(self._chat, self._desk.store)
        if self.left_out >= len(said):  # they were cut
            self.left_out = 0
        before = self.left_out
        if self.full:
            self.left_out, self.full = _later(said, self.left_out) or self.left_out, False
        while True:
            prompt, parts = self.prompt()
            try:
                reply = await self._desk.backend.submit(prompt, params, tag=tag)
            except RequestTooLong:
                start = _later(said, self.left_out)
                self.left_out = before if start is None else start
                if start is None:
                    raise
            else:
                if self.left_out > before:
                    self._desk.complain(
                        f"{self._chat.letter.upper()} is longer than the model can read: "
                        f"it does not see the first {plural(self.left_out, 'message')} any more"
                    )
                return reply, prompt, parts


def _said(chat: Chat, store: Store) -> list[Message]:
    newest = chat.messages
    earlier = store.older(chat.id, newest[0].id, chat.earlier) if chat.earlier else []
    return [*earlier, *newest[:-1]]


def _later(said: Sequence[Message], start: int) -> int | None:
    """Where the newer half begins, with a message of the person's; None where that is all there is."""
    middle = (start + len(said) + 1) // 2
    return next((at for at in range(middle, len(said)) if said[at].role == "user"), None)
