"""Prompts: text, token ids or messages, and their tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.api.errors import BadInput
from engine.api.layout import PromptLayout, TokenSpan
from engine.text.chat import ChatFormat


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages, with tools and options for the chat template."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


# Token ids, plain text to complete, or messages for the model's chat template.
WholePrompt = Sequence[int] | str | Sequence[Mapping[str, Any]] | ChatPrompt


@dataclass(frozen=True, slots=True)
class CutPrompt:
    """A prompt of which at most `most` tokens are kept: its last ones, or its first ones."""

    prompt: WholePrompt
    most: int
    first: bool = False

    def kept(self, ids: list[int]) -> list[int]:
        return ids[: self.most] if self.first else ids[max(0, len(ids) - self.most) :]


Prompt = WholePrompt | CutPrompt


def prompt_ids(prompt: Prompt, chat: ChatFormat) -> tuple[list[int], bool]:
    """Return the prompt's token ids, and whether the reply's text continues the prompt's."""
    if isinstance(prompt, CutPrompt):
        ids, continues = prompt_ids(prompt.prompt, chat)
        return prompt.kept(ids), continues
    if isinstance(prompt, str):
        return chat.tokenizer.encode_raw(prompt), True
    if isinstance(prompt, ChatPrompt):
        continues = bool(prompt.options.get("continue_final_message"))
        return chat.prompt(prompt.messages, prompt.tools or None, **prompt.options), continues
    if isinstance(prompt, bytes) or not isinstance(prompt, Sequence):
        raise BadInput(f"a prompt must be text, messages or token ids, got {type(prompt).__name__}")
    if prompt and isinstance(prompt[0], Mapping):
        return chat.prompt(prompt), False
    for kind in set(map(type, prompt)):
        if not issubclass(kind, int) or kind is bool:
            wrong = next(each for each in prompt if type(each) is kind)
            raise BadInput(f"a prompt of token ids must hold only integers, got {wrong!r}")
    return list(prompt), True  # type: ignore[arg-type]


def prompt_layout(prompt: str | Sequence[Mapping[str, Any]], chat: ChatFormat) -> PromptLayout:
    """Return the characters that each token of `prompt_ids` covers. Plain text counts as one message."""
    if not isinstance(prompt, str):
        return chat.layout(prompt)
    ids, placed = chat.tokenizer.encode_raw(prompt), chat.tokenizer.encode_placed(prompt)
    start = len(ids) - len(placed)  # the start tokens before the text
    if ids[start:] != [token for token, _, _ in placed]:
        return PromptLayout()
    known = (TokenSpan(0, begin, end) for _, begin, end in placed)
    return PromptLayout(tuple(ids), (*(TokenSpan(-1) for _ in range(start)), *known))


def texts(tokens: Sequence[int], after: Sequence[int], chat: ChatFormat) -> list[str]:
    """Return the text that each token adds to a reply. `after`: the tokens before it."""
    return [*map(chat.tokenizer.detokenizer(after=after).push, tokens)]
