"""Prompts that are refused before they are tokenized: megabytes of text would take seconds."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from engine.api.errors import MORE_CONTEXT, RequestTooLong
from engine.api.snapshot import Snapshot
from engine.host.prompts import ChatPrompt, Prompt
from engine.text.chat import ChatFormat

_PIECE = 65_536  # characters that are tokenized at once
_DENSE = 8  # characters of a token, twice as many as usual


def refuse_too_long(prompt: Prompt, chat: ChatFormat, snapshot: Callable[[], Snapshot]) -> None:
    """Raise if the texts of a long prompt, piece by piece, have twice the tokens that the model takes.

    A piece has other tokens than the whole text only where it was cut. Templates may drop what an assistant
    said, so only the texts of others count.
    """
    texts = [*_texts(prompt)]
    characters = sum(map(len, texts))
    if characters <= _PIECE:
        return
    shot = snapshot()
    most = 2 * shot.max_context
    if characters <= _DENSE * shot.max_context:
        return
    found = 0
    for piece in (text[n : n + _PIECE] for text in texts for n in range(0, len(text), _PIECE)):
        found += len(chat.tokenizer.encode(piece))
        if found > most:
            raise RequestTooLong(
                f"more than {most:,} tokens; this model takes {shot.max_context - 1:,}. "
                f"Shorten the prompt or {MORE_CONTEXT[shot.context_bound]}",
                field="prompt",
            )


def _texts(prompt: Prompt) -> Iterator[str]:
    """Yield the texts that are certainly part of the prompt. Those of a wrong form are refused later."""
    if isinstance(prompt, str):
        yield prompt
    messages = prompt.messages if isinstance(prompt, ChatPrompt) else prompt
    if isinstance(messages, list | tuple) and messages and isinstance(messages[0], Mapping):
        for message in messages:
            if isinstance(message, Mapping) and message.get("role") != "assistant":
                yield from _parts(message.get("content"))


def _parts(content: Any) -> Iterator[str]:
    for part in content if isinstance(content, list) else [{"text": content}]:
        if isinstance(part, Mapping) and isinstance(text := part.get("text"), str):
            yield text.strip()  # as templates do
