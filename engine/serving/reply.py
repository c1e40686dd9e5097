"""The text of one reply as it grows: detokenized, searched for stop strings, handed to its owner."""

import copy
from collections.abc import Callable, Sequence
from typing import Self

from engine.api.events import Delta, TokenLogprob
from engine.api.params import SamplingParams
from engine.api.request import Finish, Request
from engine.kv.window import held
from engine.text.stops import StopFinder
from engine.text.tokenizer import Tokenizer

Sink = Callable[[Delta], None]


class TextStream:
    """Tokens as text, up to where they end it."""

    def __init__(
        self, tokenizer: Tokenizer, stop_ids: frozenset[int], params: SamplingParams, after: Sequence[int]
    ) -> None:
        self._stop_ids = stop_ids
        self._text = tokenizer.detokenizer(after=after)
        self._held = ""  # was held back for stop strings that have been replaced
        self._tune(params)

    def retune(self, params: SamplingParams) -> None:
        """Other parameters, from the next token on."""
        self._held += self._stops.flush()
        self._tune(params)

    def copy(self) -> Self:
        twin = copy.copy(self)
        twin._text, twin._stops = self._text.copy(), self._stops.copy()
        return twin

    def fork(self, params: SamplingParams) -> Self:
        """The same text, to be continued on its own by other parameters."""
        twin = self.copy()
        twin.retune(params)
        return twin

    def skip(self, tokens: Sequence[int]) -> None:
        """These are there already, and shown."""
        texts = [self._text.push(token) for token in tokens]
        self._stops.prime("".join(texts[max(0, self._floor - 1) :]))

    def take(
        self, token: int, generated: int, *, full: bool, over: bool = False
    ) -> tuple[str, Finish | None]:
        """The text that one more token makes certain, the `generated`th; and why it is the last, if it is.

        `full`: there is no room for another one. `over`: nothing can follow.
        """
        if token in self._enders and generated > self._floor:
            return self.flush(), Finish.STOP
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

    def flush(self) -> str:
        """The rest: what was held back may be the text."""
        text, hit = self._push(self._text.flush())
        return text if hit else text + self._stops.flush()

    def _push(self, text: str) -> tuple[str, bool]:
        """The text that is certain now, and whether a stop string was met."""
        if self._held:
            text, self._held = self._held + text, ""
        safe, hit = self._stops.push(text)
        return safe, hit is not None

    def _tune(self, params: SamplingParams) -> None:
        self._stops = StopFinder(params.stop)
        self._watches = bool(params.stop or self._held)
        self._enders = params.enders(self._stop_ids)
        self._floor = params.min_tokens


class ReplyOutput:
    """One per request. Its owner's sink gets a delta whenever something new is certain."""

    def __init__(self, written: TextStream, sink: Sink) -> None:
        self.written, self.sink = written, sink
        self._later: SamplingParams | None = None  # for the token after the one that is on its way

    def retune(self, params: SamplingParams, *, in_flight: bool = False) -> None:
        """Other parameters, from the next token on; or after the one that was launched under the old ones."""
        self._later = params if in_flight else None
        if not in_flight:
            self.written.retune(params)

    def take(
        self, request: Request, token: int, logprobs: tuple[TokenLogprob, ...], *, full: bool
    ) -> Finish | None:
        """Hands one more token on. Returns why the reply ends with it, if it does."""
        over = request.guide is not None and request.guide.over
        text, finish = self.written.take(token, request.generated, full=full, over=over)
        if self._later:
            self.retune(self._later)
        blocks = len(held(request.blocks)) if finish else 0
        self.sink(Delta(request.id, (token,), text, logprobs, finish, blocks=blocks))
        return finish

    def end(self, request: Request, finish: Finish, error: str = "", fault: str = "") -> None:
        """Ends it from outside. What was held back is shown, unless something broke: it may be the text."""
        text = "" if error else self.written.flush()
        blocks = len(held(request.blocks))
        self.sink(Delta(request.id, (), text, (), finish, error, fault=fault, blocks=blocks))
