"""Conversations, and their token ids with a mark on the tokens to learn."""

from dataclasses import dataclass
from functools import lru_cache

from tokenizers import Tokenizer

from training.check import Check

START, TURN, END_TURN, END_TEXT, PAD = "<|start|>", "<|im_start|>", "<|im_end|>", "<|end|>", "<|pad|>"
SPECIALS = (START, TURN, END_TURN, END_TEXT, PAD)
LEARN = 0x8000  # the high bit of a stored token: its prediction is part of the loss
FIRST = 0x4000  # the next bit: a text begins here, without the start token

CHAT_TEMPLATE = (
    "{{- bos_token }}"
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question, the reply to learn, and the check for other replies."""

    user: str
    reply: str
    check: Check


@dataclass(frozen=True, slots=True)
class Chat:
    """Exchanges in order, optionally with a system prompt. `kind` names what it teaches."""

    kind: str
    exchanges: tuple[Exchange, ...]
    system: str = ""

    def turns(self) -> list[tuple[str, str]]:
        turns = [("system", self.system)] if self.system else []
        for exchange in self.exchanges:
            turns += [("user", exchange.user), ("assistant", exchange.reply)]
        return turns


@dataclass(frozen=True, slots=True)
class Passage:
    """Plain text, all of it learned, so that a raw completion reads well. `whole`: it has the start and end tokens."""

    kind: str
    text: str
    whole: bool = True


def render(turns: list[tuple[str, str]], ask: bool = False) -> str:
    """The turns rendered by the chat template."""
    body = "".join(f"{TURN}{role}\n{content}{END_TURN}" for role, content in turns)
    return START + body + (f"{TURN}assistant\n" if ask else "")


def token_id(tokenizer: Tokenizer, text: str) -> int:
    """The id of a special token."""
    found = tokenizer.token_to_id(text)
    if found is None:
        raise ValueError(
            f"the tokenizer has no token {text!r}; create it with training.vocabulary.train_tokenizer"
        )
    return int(found)


@lru_cache(maxsize=1)
def _head_length(tokenizer: Tokenizer) -> int:
    return len(tokenizer.encode("assistant\n", add_special_tokens=False).ids)


def encode(item: Chat | Passage, tokenizer: Tokenizer) -> list[int]:
    """Token ids with LEARN set on each token whose prediction counts."""
    start, turn, end_turn, end_text = (token_id(tokenizer, s) for s in (START, TURN, END_TURN, END_TEXT))
    if isinstance(item, Passage):
        ids = tokenizer.encode(item.text, add_special_tokens=False).ids
        if not item.whole:
            return [ids[0] | FIRST, *(i | LEARN for i in ids[1:])]
        return [start, *(i | LEARN for i in ids), end_text | LEARN]
    turns = item.turns()
    texts = [f"{role}\n{content}" for role, content in turns]
    out = [start]
    for (role, _), piece in zip(turns, tokenizer.encode_batch(texts, add_special_tokens=False), strict=True):
        if role != "assistant":
            out += [turn, *piece.ids, end_turn]
            continue
        head = _head_length(tokenizer)
        out += [turn, *piece.ids[:head], *(i | LEARN for i in piece.ids[head:]), end_turn | LEARN]
    return out
