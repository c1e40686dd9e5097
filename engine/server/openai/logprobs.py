"""Log probabilities of tokens, in the forms of both routes."""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

from engine.api.events import TokenLogprob

LEAST = -9999.0  # JSON has no infinity

Pieces = Callable[[Sequence[int]], list[bytes]]


def chat_logprobs(entries: Sequence[TokenLogprob], pieces: Pieces) -> list[dict[str, Any]]:
    def one(token: int, logprob: float) -> dict[str, Any]:
        [piece] = pieces([token])
        text = piece.decode(errors="replace")
        return {"token": text, "logprob": max(logprob, LEAST), "bytes": list(piece)}

    return [
        one(entry.token, entry.logprob) | {"top_logprobs": [one(*pair) for pair in entry.top]}
        for entry in entries
    ]


class CompletionLogprobs:
    """The logprobs of one choice. A token's offset is where its text starts in the choice's text."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces, self._at = pieces, 0

    def echo(
        self, prompt: Sequence[int], texts: Sequence[str], entries: Sequence[TokenLogprob]
    ) -> dict[str, Any]:
        """Return those of the prompt, which precede the reply's. Its first token has none.

        `texts`: what each token adds to the prompt's text.
        """
        offsets = [*accumulate(map(len, texts), initial=0)]
        found = self.record(entries)
        self._at = offsets.pop()
        return {
            "tokens": [self._text(prompt[0]), *found["tokens"]],
            "token_logprobs": [None, *found["token_logprobs"]],
            "top_logprobs": [None, *found["top_logprobs"]],
            "text_offset": offsets,
        }

    def record(self, entries: Iterable[TokenLogprob]) -> dict[str, Any]:
        tokens, own, top, offsets = list[str](), list[float](), list[dict[str, float]](), list[int]()
        for entry in entries:
            text = self._text(entry.token)
            tokens.append(text)
            own.append(max(entry.logprob, LEAST))
            likely = dict[str, float]()
            for token, value in (
                *entry.top,
                (entry.token, entry.logprob),
            ):  # OpenAI includes the token itself
                shown = self._text(token)  # of tokens with one text, the likeliest
                likely[shown] = max(value, likely.get(shown, LEAST))
            top.append(likely)
            offsets.append(self._at)
            self._at += len(text)
        return {"tokens": tokens, "token_logprobs": own, "top_logprobs": top, "text_offset": offsets}

    def _text(self, token: int) -> str:
        return self._pieces([token])[0].decode(errors="replace")
