"""The text of one reply as it grows: detokenized, searched for stop strings, handed to its owner."""

from collections.abc import Callable, Sequence

from engine.events import Delta, TokenLogprob
from engine.params import SamplingParams
from engine.request import Finish, Request
from engine.text.stops import StopFinder
from engine.text.tokenizer import Tokenizer


class Reply:
    """One per request. Its owner's sink gets a delta whenever something new is certain."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop_ids: frozenset[int],
        params: SamplingParams,
        after: Sequence[int],
        sink: Callable[[Delta], None],
    ) -> None:
        self._stop_ids, self._sink = stop_ids, sink
        self._text = tokenizer.detokenizer(after=after)
        self._held = ""  # was held back for stop strings that have been replaced
        self._later: SamplingParams | None = None  # for the token after the one that is on its way
        self._tune(params)

    def retune(self, params: SamplingParams, *, in_flight: bool = False) -> None:
        """Other parameters, from the next token on; or after the one that was launched under the old ones."""
        if in_flight:
            self._later = params
            return
        self._held += self._stops.flush()
        self._tune(params)

    def fork(self, params: SamplingParams, sink: Callable[[Delta], None]) -> "Reply":
        twin = object.__new__(Reply)
        twin._stop_ids, twin._sink = self._stop_ids, sink
        twin._text, twin._stops, twin._held = self._text.copy(), self._stops.copy(), self._held
        twin.retune(params)
        return twin

    def take(
        self, request: Request, token: int, logprobs: tuple[TokenLogprob, ...], *, full: bool
    ) -> Finish | None:
        """Hands one more token on. Returns why the reply ends with it, if it does."""
        finish = None
        generated = len(request.tokens) - request.prompt_len
        if token in self._enders and generated > self._floor:
            finish, text = Finish.STOP, self._flush()
        else:
            text = self._text.push(token)
            if self._watches and generated >= self._floor:
                text, hit = self._push(text)
                finish = Finish.STOP if hit else None
            elif self._held:
                text, self._held = self._held + text, ""
            if full and not finish:
                finish, text = Finish.LENGTH, text + self._flush()
        if self._later:
            self.retune(self._later)
        self._sink(Delta(request.id, (token,), text, logprobs, finish))
        return finish

    def end(self, request: Request, finish: Finish, error: str = "") -> None:
        """Ends it from outside. What was held back is shown, unless something broke: it may be the text."""
        self._sink(Delta(request.id, (), "" if error else self._flush(), (), finish, error))

    def _push(self, text: str) -> tuple[str, bool]:
        """The text that is certain now, and whether a stop string was met."""
        if self._held:
            text, self._held = self._held + text, ""
        safe, hit = self._stops.push(text)
        return safe, hit is not None

    def _flush(self) -> str:
        text, hit = self._push(self._text.flush())
        return text if hit else text + self._stops.flush()

    def _tune(self, params: SamplingParams) -> None:
        self._stops = StopFinder(params.stop)
        self._watches = bool(params.stop or self._held)
        self._enders = params.enders(self._stop_ids)
        self._floor = params.min_tokens
        self._later = None
