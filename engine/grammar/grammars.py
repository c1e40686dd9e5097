"""Compiled grammars, kept for the next who asks."""

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from engine.api.errors import BadParams
from engine.api.params import Grammar, SamplingParams
from engine.api.request import Request
from engine.grammar.matcher import GrammarMatcher, reason
from engine.grammar.source import source, unusable
from engine.grammar.vocabulary import readable
from engine.scheduling.step import Masks, Step
from engine.text.tokenizer import Tokenizer

KEPT = 256
SECONDS = 5.0  # that a grammar may take to compile
_LIMITS = LLParserLimits(verbose_errors=False)  # its own, on work and memory


class Grammars:
    """For one model. Compiling happens on threads of its own, and may be asked for from any."""

    def __init__(self, tokenizer: Tokenizer, vocab: int, stop_ids: frozenset[int]) -> None:
        self._tokenizer, self._vocab, self._stop_ids = tokenizer, vocab, stop_ids
        self._helpers = ThreadPoolExecutor(2, "minichat-grammar")
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._read: LLTokenizer | None = None
        self._found: OrderedDict[Grammar, Future[GrammarMatcher]] = OrderedDict()

    def check(self, grammar: Grammar, seconds: float = SECONDS) -> None:
        """Compiles it, if nobody has yet. Raises BadParams where it cannot be, or takes too long."""
        self._compiled(grammar, seconds)

    def check_start(self, params: SamplingParams, reply_prefix: Sequence[int]) -> None:
        """Raises BadParams where no reply by these, its first tokens given, has another one to draw."""
        assert params.grammar is not None
        guide = self._compiled(params.grammar, SECONDS).starting(0)
        guide.read(reply_prefix)
        if guide.error:
            raise BadParams("said", "does not keep to the grammar")
        guide.allowed(params.enders(self._stop_ids), early=len(reply_prefix) < params.min_tokens)
        if guide.error:
            raise BadParams(guide.fault, guide.error)

    def warm(self) -> None:
        """Reads the vocabulary beside the steps, so that the first grammar need not wait for it."""
        self._helpers.submit(self._vocabulary)

    def allowed(self, request: Request) -> np.ndarray:
        """The tokens that a request may draw next, a bit each."""
        params = request.params
        assert params.grammar is not None
        if request.guide is None:
            start = max(request.prompt_len, request.guided_from)
            request.guide = self._compiled(params.grammar, SECONDS).starting(start)
        request.guide.read(request.tokens)
        early = request.generated < params.min_tokens
        return request.guide.allowed(params.enders(self._stop_ids), early=early)

    def masks(self, step: Step, requests: Mapping[int, Request]) -> Masks:
        """What the guided rows of a step may draw, by what their requests hold now.

        A request that has ended is passed over: what its row draws is dropped.
        """
        rows = [step.rows[at] for at in step.guided]
        alive = [(row.slot, each) for row in rows if (each := requests.get(row.request))]
        bits = [self.allowed(each) for _, each in alive]
        return Masks(tuple(slot for slot, _ in alive), np.stack(bits) if bits else np.zeros((0, 0), np.uint8))

    def _compiled(self, grammar: Grammar, seconds: float) -> GrammarMatcher:
        vocabulary = self._vocabulary()
        with self._lock:
            found = self._found.get(grammar)
            if found is None:
                found = self._found[grammar] = self._helpers.submit(self._compile, vocabulary, grammar)
                if len(self._found) > KEPT:
                    self._found.popitem(last=False)
            self._found.move_to_end(grammar)
        try:
            return found.result(seconds)
        except TimeoutError:
            why = f"takes longer than {seconds:g} s to compile; make it smaller, or ask again later"
            raise BadParams("grammar", why) from None
        except BadParams:
            with self._lock:
                self._found.pop(grammar, None)
            raise

    def _compile(self, vocabulary: LLTokenizer, grammar: Grammar) -> GrammarMatcher:
        matcher = LLMatcher(vocabulary, source(grammar), log_level=0, limits=_LIMITS)
        if matcher.is_error():
            raise unusable(grammar, reason(matcher.get_error()))
        guide = GrammarMatcher(matcher, self._vocab)
        if guide.error:
            raise BadParams("grammar", f"no text keeps to it: {guide.error}")
        if guide.over:
            raise BadParams("grammar", "only an empty text keeps to it")
        return guide

    def _vocabulary(self) -> LLTokenizer:
        with self._reading:
            if self._read is None:
                self._read = readable(self._tokenizer, self._vocab)
            return self._read
