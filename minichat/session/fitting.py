"""Whether a message fits: its tokens against the limit of the model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.api.snapshot import Snapshot
from minichat.chats.model import Attachment, Message
from minichat.session.conversation import Conversation
from minichat.session.turns import prompt_of

_SMALL = 8  # messages below this fraction of the room are not counted


@dataclass(frozen=True, slots=True)
class PromptFit:
    """A message with the chat's system prompt in the template. Earlier messages may be left out."""

    tokens: int
    room: int  # tokens allowed for a prompt
    model: str
    reply: int = 0  # tokens that max_tokens reserves for the reply
    longest: str = "message"  # what has most of the text

    @property
    def fits(self) -> bool:
        return self.tokens <= self.room

    @property
    def left(self) -> int:
        return self.room - self.tokens

    def __str__(self) -> str:
        beside = f" beside the {self.reply:,} of max tokens" if self.reply else ""
        return f"{self.tokens:,} tokens; {self.model} takes {self.room:,}{beside}"

    def refusal(self, larger: str) -> str:
        """The error if it does not fit. `larger` says how to choose a larger model, if possible."""
        ways = [f"shorten the {self.longest}", "lower max tokens" if self.reply else "", larger]
        *first, last = filter(None, ways)
        sentence = f"{', '.join(first)} or {last}" if first else last
        return f"{self}. {sentence[0].upper()}{sentence[1:]}"


def room_for(conversation: Conversation, shot: Snapshot) -> int:
    """The maximum tokens of a prompt in this chat, leaving at least one for the reply."""
    return max(shot.max_context - (conversation.chat.params.max_tokens or 1), 0)


def small(conversation: Conversation, text: str, shot: Snapshot) -> bool:
    """Whether the text certainly fits, without counting: a token is at least one byte."""
    nbytes = len(text.encode(errors="replace")) + len(conversation.chat.system.encode(errors="replace"))
    return _SMALL * nbytes < room_for(conversation, shot)


async def fit_of(
    conversation: Conversation, text: str, attachments: Sequence[Attachment], shot: Snapshot
) -> PromptFit:
    """Count the tokens of a message as the engine would."""
    backend, chat = conversation.services.backend, conversation.chat
    own = Message(0, "user", text, attachments=tuple(attachments))
    alone = replace(chat, messages=[own, Message(1, "assistant", "")], earlier=0)
    prompt, _ = prompt_of(alone, conversation.services.store, template=backend.has_template)
    tokens = await backend.count(prompt)
    rest = len(text) + sum(len(each.text) for each in attachments)
    longest = "system prompt" if len(chat.system) > rest else "message"
    return PromptFit(tokens, room_for(conversation, shot), shot.model, chat.params.max_tokens or 0, longest)
