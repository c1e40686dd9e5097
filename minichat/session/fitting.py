"""Whether the model can read a message: its tokens against what the model takes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.api.snapshot import Snapshot
from minichat.chats.model import Attachment, Message
from minichat.session.conversation import Conversation
from minichat.session.turns import prompt_of

_SMALL = 8  # a message of less than this share of the room is not counted


@dataclass(frozen=True, slots=True)
class PromptFit:
    """A message with its chat's system prompt, in the template. What was said before may be left out."""

    tokens: int
    room: int  # tokens that the model takes of a prompt
    model: str
    reply: int = 0  # tokens that max_tokens keeps for the reply

    @property
    def fits(self) -> bool:
        return self.tokens <= self.room

    @property
    def left(self) -> int:
        return self.room - self.tokens

    def __str__(self) -> str:
        return f"{self.tokens:,} tokens; {self.model} takes {self.room:,}"

    def refusal(self, larger: str) -> str:
        """Why it is not sent, and what to do. `larger`: how to choose a larger model, if that is possible."""
        beside = f" beside the {self.reply:,} of max_tokens" if self.reply else ""
        ways = ["shorten the message", "lower max_tokens" if self.reply else "", larger]
        *first, last = filter(None, ways)
        sentence = f"{', '.join(first)} or {last}" if first else last
        return f"{self}{beside}. {sentence[0].upper()}{sentence[1:]}"


def room_for(conversation: Conversation, shot: Snapshot) -> int:
    """Tokens that a prompt of this chat may have; the reply needs at least one."""
    return max(shot.max_context - (conversation.chat.params.max_tokens or 1), 0)


def small(conversation: Conversation, text: str, shot: Snapshot) -> bool:
    """Whether it fits by far, with nothing counted: a token is at least a byte."""
    nbytes = len(text.encode(errors="replace")) + len(conversation.chat.system.encode(errors="replace"))
    return _SMALL * nbytes < room_for(conversation, shot)


async def fit_of(
    conversation: Conversation, text: str, attachments: Sequence[Attachment], shot: Snapshot
) -> PromptFit:
    """Counts the tokens of a message as the engine would."""
    backend, chat = conversation.desk.backend, conversation.chat
    own = Message(0, "user", text, attachments=tuple(attachments))
    alone = replace(chat, messages=[own, Message(1, "assistant", "")], earlier=0)
    prompt, _ = prompt_of(alone, conversation.desk.store, template=backend.has_template)
    tokens = await backend.count(prompt)
    return PromptFit(tokens, room_for(conversation, shot), shot.model, chat.params.max_tokens or 0)
