"""What a host knows of the model's text. Found on the caller's thread: it is no concern of the engine's."""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.api.layout import PromptLayout
from engine.host.prompts import ChatPrompt, prompt_ids, prompt_layout, texts
from engine.text.chat import ChatFormat


class ChatText:
    """The part of a host that is the same wherever the engine runs."""

    _chat: ChatFormat

    @property
    def has_template(self) -> bool:
        """Whether messages can be submitted, or only text and tokens."""
        return self._chat.has_template

    @property
    def templates(self) -> Mapping[str, str]:
        """The sources of the model's chat templates, by their names."""
        return self._chat.tokenizer.templates

    def text(self, conversation: ChatPrompt) -> str:
        """What the template makes of a conversation, to be looked at."""
        tools = conversation.tools or None
        return self._chat.text(conversation.messages, tools, **conversation.options)

    def pieces(self, tokens: Sequence[int]) -> list[bytes]:
        """What each token stands for inside a text."""
        return [self._chat.tokenizer.piece(token) for token in tokens]

    def count(self, prompt: str | Sequence[Mapping[str, Any]]) -> int:
        """How many tokens a prompt has."""
        return len(prompt_ids(prompt, self._chat)[0])

    def layout(self, prompt: str | Sequence[Mapping[str, Any]]) -> PromptLayout:
        """Which characters of a prompt's text or messages its tokens stand for."""
        return prompt_layout(prompt, self._chat)

    def texts(self, tokens: Sequence[int], after: Sequence[int] = ()) -> list[str]:
        """What each token adds to a reply's text. `after`: the tokens that it goes on from."""
        return texts(tokens, after, self._chat)
