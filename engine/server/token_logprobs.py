"""Log-probabilities of a reply's tokens, in the form that OpenAI's chats and Ollama share."""

from collections.abc import Callable, Sequence
from typing import Any

from engine.api.events import TokenLogprob

LEAST = -9999.0  # JSON has no infinity

Pieces = Callable[[Sequence[int]], list[bytes]]


def token_records(entries: Sequence[TokenLogprob], pieces: Pieces) -> list[dict[str, Any]]:
    """Return a record of each token, with those of the likeliest ones."""

    def one(token: int, logprob: float) -> dict[str, Any]:
        [piece] = pieces([token])
        text = piece.decode(errors="replace")
        return {"token": text, "logprob": max(logprob, LEAST), "bytes": list(piece)}

    return [
        one(entry.token, entry.logprob) | {"top_logprobs": [one(*pair) for pair in entry.top]}
        for entry in entries
    ]
