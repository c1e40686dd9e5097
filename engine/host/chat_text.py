"""The text functions of a host: templates, tokens and layout. They run on the caller's thread."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from engine.api.errors import TemplateError
from engine.api.layout import PromptLayout
from engine.host.prompts import ChatPrompt, Prompt, prompt_ids, prompt_layout, texts
from engine.text.chat import ChatFormat
from engine.text.reasoning import OPEN
from engine.text.tokenizer import Tokenizer


class ChatText:
    """The text functions that are the same wherever the engine runs."""

    _chat: ChatFormat

    @property
    def tokenizer(self) -> Tokenizer:
        return self._chat.tokenizer

    @property
    def has_template(self) -> bool:
        """Whether messages can be submitted. Without a template, only text and tokens can."""
        return self._chat.has_template

    @property
    def templates(self) -> Mapping[str, str]:
        """The sources of the model's chat templates, by name."""
        return self._chat.tokenizer.templates

    def text(self, conversation: ChatPrompt) -> str:
        """Return the rendered conversation, for display."""
        tools = conversation.tools or None
        return self._chat.text(conversation.messages, tools, **conversation.options)

    def opens_thinking(self, options: Mapping[str, Any] | None = None) -> bool:
        """Whether the template ends the prompt with <think>, so that a reply starts inside its reasoning."""
        try:
            text = self.text(ChatPrompt([{"role": "user", "content": "?"}], (), options or {}))
        except TemplateError:  # it may still accept the user's messages
            return False
        return text.rstrip().endswith(OPEN)

    def pieces(self, tokens: Sequence[int]) -> list[bytes]:
        """Return the bytes of each token inside a text."""
        return [self._chat.tokenizer.piece(token) for token in tokens]

    def words(self, tokens: Collection[int]) -> dict[str, str]:
        """Return the text of each token alone, by its number, as screens elsewhere get them."""
        pieces = zip(tokens, self.pieces([*tokens]), strict=True)
        return {str(token): piece.decode(errors="replace") for token, piece in pieces}

    def tokens(self, prompt: Prompt) -> list[int]:
        """Return a prompt's tokens as the engine reads them."""
        return prompt_ids(prompt, self._chat)[0]

    def count(self, prompt: Prompt) -> int:
        """Return the number of tokens in a prompt."""
        return len(self.tokens(prompt))

    def layout(self, prompt: str | Sequence[Mapping[str, Any]]) -> PromptLayout:
        """Return the characters of a prompt's text or messages that each token covers."""
        return prompt_layout(prompt, self._chat)

    def texts(self, tokens: Sequence[int], after: Sequence[int] = ()) -> list[str]:
        """Return the text that each token adds to a reply. `after`: the tokens before it."""
        return texts(tokens, after, self._chat)
