"""Log-probabilities of tokens, in the form of completions."""

from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate
from typing import Any

from engine.api.events import TokenLogprob
from engine.server.token_logprobs import LEAST, Pieces


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
            "tokens": [*self._texts(prompt[:1]).values(), *found["tokens"]],
            "token_logprobs": [None, *found["token_logprobs"]],
            "top_logprobs": [None, *found["top_logprobs"]],
            "text_offset": offsets,
        }

    def record(self, entries: Iterable[TokenLogprob]) -> dict[str, Any]:
        entries = list(entries)
        shown = self._texts(
            {entry.token for entry in entries} | {token for entry in entries for token, _ in entry.top}
        )
        tokens = [shown[entry.token] for entry in entries]
        *offsets, self._at = accumulate(map(len, tokens), initial=self._at)
        top = list[dict[str, float]]()
        for token, logprob, _, likeliest in entries:
            likely = dict[str, float]()
            for each, value in (*likeliest, (token, logprob)):  # OpenAI includes the token itself
                text = shown[each]
                likely[text] = max(value, likely.get(text, LEAST))  # of tokens with one text, the likeliest
            top.append(likely)
        own = [max(entry.logprob, LEAST) for entry in entries]
        return {"tokens": tokens, "token_logprobs": own, "top_logprobs": top, "text_offset": offsets}

    def _texts(self, tokens: Collection[int]) -> dict[int, str]:
        """The text of each token, which is looked up once."""
        ids = [*tokens]
        return {
            token: piece.decode(errors="replace") for token, piece in zip(ids, self._pieces(ids), strict=True)
        }
