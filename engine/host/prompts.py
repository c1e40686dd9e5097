"""What may stand before a reply."""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.errors import BadInput
from engine.text.chat import Chat

# Token ids; or plain text, which is completed; or messages, which go through the model's chat template.
Prompt = Sequence[int] | str | Sequence[Mapping[str, Any]]


def prompt_ids(prompt: Prompt, chat: Chat) -> tuple[list[int], bool]:
    """The prompt as the model reads it, and whether the reply's text goes on from it."""
    if isinstance(prompt, str):
        return chat.tokenizer.encode_raw(prompt), True
    if isinstance(prompt, bytes) or not isinstance(prompt, Sequence):
        raise BadInput(f"a prompt is text, messages or token ids, not {type(prompt).__name__}")
    if prompt and isinstance(prompt[0], Mapping):
        return chat.prompt(prompt), False
    for token in prompt:
        if not isinstance(token, int) or isinstance(token, bool):
            raise BadInput(f"a prompt of token ids holds {token!r}, which is none")
    return list(prompt), True  # type: ignore[arg-type]
