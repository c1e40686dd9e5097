"""Log-probabilities of prompts: what `echo` needs, and the form of vLLM's `prompt_logprobs`."""

from collections.abc import Sequence
from typing import Any

from engine.api.events import Delta, TokenLogprob
from engine.server.token_logprobs import LEAST, Pieces


class PromptReader:
    """Collects those of a response's prompts, each of which has `n` choices."""

    def __init__(self, pieces: Pieces, most: int | None, n: int = 1) -> None:
        """`most`: how many of the likeliest tokens vLLM's form has; None: the response has no such field."""
        self._pieces, self._most, self._n = pieces, most, n
        self._entries: dict[int, list[TokenLogprob]] = {}

    def take(self, choice: int, deltas: Sequence[Delta]) -> None:
        for delta in deltas:
            if delta.prompt_logprobs:  # of a prompt's first choice, before the others begin
                self._entries.setdefault(choice // self._n, []).extend(delta.prompt_logprobs)

    def entries(self, choice: int) -> Sequence[TokenLogprob]:
        """Return those of the choice's prompt, from its second token on."""
        return self._entries.get(choice // self._n, ())

    def fields(self, choice: int = 0) -> dict[str, Any]:
        """Return vLLM's field, if it was requested: each token and the likeliest ones, by id."""
        if self._most is None:
            return {}
        return {"prompt_logprobs": [None, *map(self._record, self.entries(choice))]}

    def _record(self, entry: TokenLogprob) -> dict[str, Any]:
        ranked = {entry.token: (entry.logprob, entry.rank)}
        for rank, (token, logprob) in enumerate(entry.top[: self._most], 1):
            ranked.setdefault(token, (logprob, rank))
        return {str(token): self._one(token, *each) for token, each in ranked.items()}

    def _one(self, token: int, logprob: float, rank: int) -> dict[str, Any]:
        [piece] = self._pieces([token])
        return {
            "logprob": max(logprob, LEAST),
            "rank": rank,
            "decoded_token": piece.decode(errors="replace"),
        }
