"""The text of a reply as it grows: detokenize, match stop strings, pass it to the request's sink."""

import copy
from collections.abc import Callable, Sequence
from typing import Self

from engine.api.events import Delta, TokenLogprob
from engine.api.params import SamplingParams
from engine.api.request import Finish, Request
from engine.kv.window import held
from engine.serving.pooling import PromptPool
from engine.text.stops import StopFinder
from engine.text.tokenizer import Tokenizer

Sink = Callable[[Delta], None]


def without_reply(sink: Sink) -> Sink:
    """A sink for a request that only reads its prompt: the token its last step samples is dropped."""

    def take(delta: Delta) -> None:
        if delta.tokens:
            delta = delta._replace(tokens=(), text="", logprobs=(), finish=Finish.LENGTH, stop="")
        sink(delta)

    return take


class TextStream:
    """Turns tokens into text, up to the end of the reply."""

    def __init__(
        self, tokenizer: Tokenizer, stop_ids: frozenset[int], params: SamplingParams, after: Sequence[int]
    ) -> None:
        self._stop_ids = stop_ids
        self._text = tokenizer.detokenizer(after=after)
        self._held = ""  # held back for stop strings that have been replaced since
        self._tune(params)

    def retune(self, params: SamplingParams) -> None:
        """Use other parameters from the next token on."""
        self._held += self._stops.flush()
        self._tune(params)

    def copy(self) -> Self:
        clone = copy.copy(self)
        clone._text, clone._stops = self._text.copy(), self._stops.copy()
        return clone

    def fork(self, params: SamplingParams) -> Self:
        """A copy of the text so far that continues with other parameters."""
        clone = self.copy()
        clone.retune(params)
        return clone

    def skip(self, tokens: Sequence[int]) -> None:
        """Take in tokens that the reader already has."""
        texts = [self._text.push(token) for token in tokens]
        self._stops.prime("".join(texts[max(0, self._floor - 1) :]))

    def take(
        self, token: int, generated: int, *, full: bool, over: bool = False
    ) -> tuple[str, Finish | None]:
        """Add the `generated`th token. Returns the text that is now certain, and why the reply ends, if so.

        `full`: the reply has reached its limit. `over`: the grammar allows no further token.
        """
        if self._no_reply is not None:  # the token is dropped
            return "", self._no_reply
        if token in self._enders and generated > self._floor:
            shown = self._push(self._text.push(token))[0] if self._include else ""
            return shown + self.flush(), Finish.STOP
        finish = None
        text = self._text.push(token)
        if self._watches and generated >= self._floor:
            text, hit = self._push(text)
            finish = Finish.STOP if hit else None
        elif self._held:
            text, self._held = self._held + text, ""
        if (full or over) and not finish:
            finish, text = Finish.STOP if over else Finish.LENGTH, text + self.flush()
        return text, finish

    @property
    def stop(self) -> str:
        """The stop string that ended the text, if one did."""
        return self._stops.hit or ""

    def flush(self) -> str:
        """The remaining text: what was held back may not be part of a stop string."""
        text, hit = self._push(self._text.flush())
        return text if hit else text + self._stops.flush()

    def _push(self, text: str) -> tuple[str, bool]:
        """The text that is certain now, and whether a stop string matched."""
        if self._held:
            text, self._held = self._held + text, ""
        safe, hit = self._stops.push(text)
        return safe, hit is not None

    def _tune(self, params: SamplingParams) -> None:
        self._include = params.include_stop_str_in_output
        self._stops = StopFinder(params.stop, include=self._include)
        self._watches = bool(params.stop or self._held)
        self._enders = params.enders(self._stop_ids)
        self._floor = params.min_tokens
        read = Finish.STOP if params.pooling else Finish.LENGTH
        self._no_reply = read if params.max_tokens == 0 else None


class ReplyOutput:
    """The reply of one request. Its sink gets a delta whenever new text is certain."""

    def __init__(self, written: TextStream, sink: Sink) -> None:
        self.written, self.sink, self.pool = written, sink, PromptPool()
        self._later: SamplingParams | None = None  # for the token after the one in flight

    def retune(self, params: SamplingParams, *, in_flight: bool = False) -> None:
        """Use other parameters from the next token on, or after the token in flight."""
        self._later = params if in_flight else None
        if not in_flight:
            self.written.retune(params)

    def take(
        self, request: Request, token: int, logprobs: tuple[TokenLogprob, ...], *, full: bool
    ) -> Finish | None:
        """Pass on a token. Returns why the reply ends with it, if it does."""
        over = request.guide is not None and request.guide.over
        text, finish = self.written.take(token, request.generated, full=full, over=over)
        delta = Delta(request.id, (token,), text, logprobs)
        if finish:
            stop = self.written.stop if finish is Finish.STOP else ""
            delta = _ended(delta._replace(finish=finish, stop=stop), request)
        if self._later:
            self.retune(self._later)
        self.sink(delta)
        return finish

    def end(self, request: Request, finish: Finish, error: str = "", fault: str = "") -> None:
        """End the reply from outside. Held-back text is shown unless there was an error."""
        text = "" if error else self.written.flush()
        self.sink(_ended(Delta(request.id, (), text, (), finish, error, fault=fault), request))


def _ended(delta: Delta, request: Request) -> Delta:
    """Add what the request held at its end, how long its tokens took, and what drafts and tiers brought."""
    first, offer = request.first_token_at, request.offer
    decoding = 0.0 if first is None else request.last_token_at - first
    brought = None if request.drafts is None else request.drafts()
    delta = delta._replace(blocks=len(held(request.blocks)), decoding=decoding, speculation=brought)
    if offer is None or not offer.loaded:
        return delta
    return delta._replace(loaded=offer.tokens, tier=offer.tier, saved=request.saved)
