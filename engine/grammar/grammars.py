"""A cache of compiled grammars, and the token masks of constrained requests."""

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from engine.api.errors import BadParams
from engine.api.params import Grammar, SamplingParams
from engine.api.request import GrammarState, Request
from engine.grammar.matcher import GrammarMatcher
from engine.grammar.source import source, unusable
from engine.grammar.token_rules import RuledState, TokenRules
from engine.grammar.vocabulary import readable
from engine.scheduling.step import Masks, Step
from engine.text.tokenizer import Tokenizer
from engine.timeline import timed

KEPT = 256  # compiled grammars
SECONDS = 5.0  # the time limit for compiling a grammar
_LIMITS = LLParserLimits(verbose_errors=False)  # llguidance's defaults for work and memory


class Grammars:
    """The grammars of one model. They compile on helper threads, on behalf of any thread."""

    def __init__(self, tokenizer: Tokenizer, vocab: int, stop_ids: frozenset[int]) -> None:
        self._tokenizer, self._vocab, self._stop_ids = tokenizer, vocab, stop_ids
        self._helpers = ThreadPoolExecutor(2, "minichat-grammar")
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._read: LLTokenizer | None = None
        self._found: OrderedDict[Grammar, Future[GrammarMatcher]] = OrderedDict()
        self._rules: OrderedDict[tuple[tuple[int, ...] | None, tuple[str, ...]], TokenRules] = OrderedDict()

    def check(self, grammar: Grammar, seconds: float = SECONDS) -> None:
        """Compile a grammar unless it is cached. Raises BadParams if it is invalid or takes too long."""
        self.compiled(grammar, seconds)

    def prepare(self, params: SamplingParams) -> None:
        """Compile the grammar and tokenize the words of a request, unless they are cached."""
        if params.grammar:
            self.check(params.grammar)
        if params.ruled:
            self._rules_of(params)

    def check_start(self, params: SamplingParams, reply_prefix: Sequence[int]) -> None:
        """Raise BadParams if the grammar rejects `reply_prefix` or allows no token after it."""
        guide = self._starting(params, 0, 0)
        guide.read(reply_prefix)
        if guide.error:
            raise BadParams("said", "does not match the grammar")
        guide.allowed(params.enders(self._stop_ids), early=len(reply_prefix) < params.min_tokens)
        if guide.error:
            raise BadParams(guide.fault, guide.error)

    def warm(self) -> None:
        """Build the vocabulary in the background, so that the first grammar does not wait for it."""
        self._helpers.submit(self._vocabulary)

    def allowed(self, request: Request) -> np.ndarray:
        """Return the bit mask of the tokens that a request may sample next."""
        params = request.params
        if request.guide is None:
            start = request.prompt_len
            request.guide = self._starting(params, start, max(start, request.guided_from))
        request.guide.read(request.tokens)
        early = request.generated < params.min_tokens
        return request.guide.allowed(params.enders(self._stop_ids), early=early)

    def masks(self, step: Step, requests: Mapping[int, Request]) -> Masks:
        """Return the masks of a step's constrained rows, from their requests' current tokens.

        Requests that have ended are skipped; the tokens sampled for them are dropped.
        """
        rows = step.rows.numbers[list(step.guided)].tolist()
        alive = [(slot, each) for id, slot, *_ in rows if (each := requests.get(id))]
        bits = [self.allowed(each) for _, each in alive]
        return Masks(tuple(slot for slot, _ in alive), np.stack(bits) if bits else np.zeros((0, 0), np.uint8))

    def _rules_of(self, params: SamplingParams) -> TokenRules:
        """Return the rules of a request's own tokens and words."""
        key = params.allowed_token_ids, params.bad_words
        with self._lock:
            found = self._rules.get(key)
        if found is None:
            found = TokenRules.of(params, self._tokenizer, self._vocab)
        with self._lock:
            self._rules[key] = found
            self._rules.move_to_end(key)
            if len(self._rules) > KEPT:
                self._rules.popitem(last=False)
        return found

    def _starting(self, params: SamplingParams, start: int, guided_from: int) -> GrammarState:
        """Return the state of a reply that begins at `start`, and its grammar at `guided_from`."""
        grammar = params.grammar
        guide = self.compiled(grammar, SECONDS).starting(guided_from) if grammar else None
        if params.ruled:
            return RuledState(self._rules_of(params), guide, start)
        assert guide is not None
        return guide

    def compiled(self, grammar: Grammar, seconds: float = SECONDS) -> GrammarMatcher:
        """Return the compiled grammar. A compilation that takes longer is refused, but continues."""
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
            why = f"takes longer than {seconds:g} s to compile; make it smaller or retry later"
            raise BadParams("grammar", why) from None
        except BadParams:
            with self._lock:
                self._found.pop(grammar, None)
            raise

    def _compile(self, vocabulary: LLTokenizer, grammar: Grammar) -> GrammarMatcher:
        matcher = LLMatcher(vocabulary, source(grammar), log_level=0, limits=_LIMITS)
        if matcher.is_error():
            raise unusable(grammar, matcher.get_error())
        guide = GrammarMatcher(matcher, self._vocab)
        if guide.error:
            raise BadParams("grammar", f"no text matches it: {guide.error}")
        if guide.over:
            raise BadParams("grammar", "only the empty text matches it")
        return guide

    def _vocabulary(self) -> LLTokenizer:
        with self._reading:
            if self._read is None:
                with timed("the vocabulary of grammars"):  # most of it with the GIL
                    self._read = readable(self._tokenizer, self._vocab)
            return self._read
