"""How a request is sampled. Frozen: changing a parameter creates a new object."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self, get_args

from engine.api.errors import BadParams

MAX_STOPS = 16
MAX_BIASED = 1024
MAX_LOGPROBS = 20
MAX_LOGPROB_IDS = 1024
MAX_ALLOWED = 2**16  # ids of allowed_token_ids
MAX_BAD_WORDS = 256
MAX_BAD_WORD = 256  # characters
MAX_DRAFT = 16
POOLING = ("last", "mean")
SPECULATION = ("ngram", "suffix", "draft", "exit")
MAX_BEAMS = 512
MAX_SAMPLES = 128

MAX_GRAMMAR = 2**17  # characters

_GRAMMAR_KEYS = {"kind", "text", "any_whitespace"}
EarlyStopping = Literal[False, True, "never"]
GrammarKind = Literal["json", "regex", "choice", "lark"]


@dataclass(frozen=True, slots=True)
class Grammar:
    """A constraint on a reply's text: a JSON schema, a regular expression, a JSON list of choices, or a
    Lark grammar as llguidance reads it, or llama.cpp's GBNF in its place.
    """

    kind: GrammarKind
    text: str
    any_whitespace: bool = False  # of JSON; else a single blank at most, after a comma or a colon

    def __post_init__(self) -> None:
        if self.kind not in get_args(GrammarKind):
            raise BadParams("grammar", f"kind must be json, regex, choice or lark, not {self.kind!r:.60}")
        if not isinstance(self.text, str):
            raise BadParams("grammar", f"text must be a string, not {self.text!r:.60}")
        if len(self.text) > MAX_GRAMMAR:
            raise BadParams("grammar", f"has {len(self.text)} characters; at most {MAX_GRAMMAR} are allowed")
        if not self.text.isascii() and any("\ud800" <= each <= "\udfff" for each in self.text):
            raise BadParams("grammar", "contains a lone surrogate, which is not valid text")
        if not isinstance(self.any_whitespace, bool):
            raise BadParams(
                "grammar", f"any_whitespace must be true or false, not {self.any_whitespace!r:.60}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Every field is validated on creation; an error names the field."""

    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0  # 0 keeps all
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and reply
    presence_penalty: float = 0.0  # over the reply
    frequency_penalty: float = 0.0  # over the reply
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None  # None: the engine chooses one
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    max_tokens: int | None = None  # None: up to the context's limit; 0: the prompt is read, without a reply
    logprobs: int | None = None  # None: none; n: of the chosen token and the n likeliest
    logprob_token_ids: tuple[int, ...] = ()  # with logprobs: of these tokens in place of the likeliest
    prompt_logprobs: int | None = None  # None: none; n: of each prompt token and the n likeliest
    pooling: str = ""  # returns hidden states of the prompt: the "last" token's, or the "mean"
    ignore_eos: bool = False
    speculate: str = ""  # the kind of speculative decoding; does not change the reply
    draft_tokens: int = 0  # drafts per step; 0: chosen by measured gain
    beams: int = 1  # hypotheses of a beam search, which does not sample; 1: no search
    length_penalty: float = 1.0  # of beams: score = log-probability / length ** length_penalty
    early_stopping: EarlyStopping = False  # of beams, as in transformers
    n: int = 1  # replies to one prompt
    best_of: int | None = None  # samples this many replies and returns the n likeliest
    grammar: Grammar | None = None  # None: unconstrained
    allowed_token_ids: tuple[int, ...] | None = None  # None: all
    bad_words: tuple[str, ...] = ()  # texts whose tokens must not follow each other in the reply
    include_stop_str_in_output: bool = False  # the stop string, or the text of the token that ends the reply

    def __post_init__(self) -> None:
        _number("temperature", self.temperature, 0.0, 100.0)
        _whole("top_k", self.top_k, 0, 2**31 - 1)
        _number("top_p", self.top_p, 0.0, 1.0, above=True)
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("repetition_penalty", self.repetition_penalty, 0.01, 100.0)  # lower values overflow
        _number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _whole("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.seed is not None:
            _whole("seed", self.seed, -(2**63), 2**64 - 1)
        if self.max_tokens is not None:
            _whole("max_tokens", self.max_tokens, 0, 2**31 - 1)
            if self.min_tokens > self.max_tokens:
                raise BadParams(
                    "min_tokens", f"{self.min_tokens} is more than max_tokens ({self.max_tokens})"
                )
        if self.logprobs is not None:
            _whole("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if self.prompt_logprobs is not None:
            _whole("prompt_logprobs", self.prompt_logprobs, 0, MAX_LOGPROBS)
        self._check_logprob_ids()
        self._check_pooling()
        _flag("ignore_eos", self.ignore_eos)
        _flag("include_stop_str_in_output", self.include_stop_str_in_output)
        self._check_speculation()
        self._check_many()
        self._check_grammar()
        self._check_token_rules()
        object.__setattr__(self, "stop", _stops(self.stop))
        object.__setattr__(self, "stop_ids", _ids("stop_ids", self.stop_ids))
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))

    def _check_logprob_ids(self) -> None:
        ids = tuple(dict.fromkeys(_ids("logprob_token_ids", self.logprob_token_ids)))
        if len(ids) > MAX_LOGPROB_IDS:
            raise BadParams("logprob_token_ids", f"at most {MAX_LOGPROB_IDS} tokens, not {len(ids)}")
        if ids and self.logprobs is None:
            raise BadParams("logprob_token_ids", "requires logprobs")
        if ids and self.max_tokens == 0:
            raise BadParams(
                "logprob_token_ids", "requires max_tokens above 0, because it is of sampled tokens"
            )
        object.__setattr__(self, "logprob_token_ids", ids)

    def _check_pooling(self) -> None:
        if self.pooling not in ("", *POOLING):
            raise BadParams("pooling", f"must be {' or '.join(POOLING)}, or empty, not {self.pooling!r:.60}")
        if self.pooling and self.max_tokens != 0:
            raise BadParams("pooling", "requires max_tokens to be 0, because there is no reply")
        if self.pooling and (self.samples > 1 or self.prompt_logprobs is not None):
            name = "prompt_logprobs" if self.samples == 1 else "n" if self.best_of is None else "best_of"
            raise BadParams("pooling", f"cannot be combined with {name}")

    def _check_speculation(self) -> None:
        if self.speculate not in ("", *SPECULATION):
            kinds = ", ".join(SPECULATION)
            raise BadParams("speculate", f"must be one of {kinds}, or empty, not {self.speculate!r:.60}")
        _whole("draft_tokens", self.draft_tokens, 0, MAX_DRAFT)
        if self.speculate and self.beams != 1:
            raise BadParams(
                "speculate", f"cannot be combined with beams ({self.beams}): a draft continues one hypothesis"
            )

    def _check_many(self) -> None:
        """Check the parameters of multiple replies and their combinations."""
        _whole("beams", self.beams, 1, MAX_BEAMS)
        _whole("n", self.n, 1, MAX_SAMPLES)
        _number("length_penalty", self.length_penalty, -10.0, 10.0)
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise BadParams(
                "early_stopping", f"must be true, false or 'never', not {self.early_stopping!r:.60}"
            )
        if self.best_of is not None:
            _whole("best_of", self.best_of, 1, MAX_SAMPLES)
            if self.best_of < self.n:
                raise BadParams("best_of", f"{self.best_of} is less than n ({self.n})")
        if self.beams > 1:
            if self.best_of is not None:
                raise BadParams(
                    "best_of", f"cannot be combined with beams ({self.beams}), which already return the best"
                )
            if self.n > self.beams:
                raise BadParams("n", f"{self.n} is more than beams ({self.beams})")
            if self.logprobs is not None:
                raise BadParams(
                    "logprobs", f"cannot be combined with beams ({self.beams}), which score whole replies"
                )
            if self.prompt_logprobs is not None:
                raise BadParams("prompt_logprobs", f"cannot be combined with beams ({self.beams})")
            if self.max_tokens == 0:
                raise BadParams("max_tokens", f"0 leaves nothing to search for with beams ({self.beams})")

    def _check_grammar(self) -> None:
        if self.grammar is None:
            return
        if isinstance(self.grammar, Mapping) and {"kind", "text"} <= self.grammar.keys() <= _GRAMMAR_KEYS:
            object.__setattr__(self, "grammar", Grammar(**self.grammar))
        if not isinstance(self.grammar, Grammar):
            raise BadParams("grammar", f"must be a kind and a text, not {self.grammar!r:.60}")
        if self.beams > 1:
            raise BadParams("grammar", f"cannot be combined with beams ({self.beams})")
        if self.speculate:
            raise BadParams("grammar", f"cannot be combined with speculate ({self.speculate})")

    def _check_token_rules(self) -> None:
        if self.allowed_token_ids is not None:
            ids = _ids("allowed_token_ids", self.allowed_token_ids)
            if not 1 <= len(ids) <= MAX_ALLOWED:
                raise BadParams("allowed_token_ids", f"must hold 1 to {MAX_ALLOWED} tokens, not {len(ids)}")
            object.__setattr__(self, "allowed_token_ids", ids)
        object.__setattr__(self, "bad_words", _words(self.bad_words))
        for name in ("allowed_token_ids", "bad_words"):
            if getattr(self, name) and self.beams > 1:
                raise BadParams(name, f"cannot be combined with beams ({self.beams})")
            if getattr(self, name) and self.speculate:
                raise BadParams(name, f"cannot be combined with speculate ({self.speculate})")

    @property
    def ruled(self) -> bool:
        """Whether tokens are allowed or banned beside a grammar."""
        return self.allowed_token_ids is not None or bool(self.bad_words)

    @property
    def guided(self) -> str:
        """The first parameter that needs a mask of allowed tokens at each step, or ""."""
        names = ("grammar", "allowed_token_ids", "bad_words")
        return next((name for name in names if getattr(self, name)), "")

    def candidates(self, enders: int) -> int:
        """How many of each row's likeliest tokens a beam search considers, enough if many of them end it."""
        return max(2, 1 + enders) * self.beams

    @property
    def samples(self) -> int:
        """How many replies are sampled."""
        return 1 if self.beams > 1 else self.best_of or self.n

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def penalized(self) -> bool:
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    def enders(self, stop_ids: frozenset[int]) -> frozenset[int]:
        """The tokens that end a reply; `stop_ids` are the model's."""
        own = frozenset(self.stop_ids)
        return own if self.ignore_eos else own | stop_ids

    def changed(self, **changes: Any) -> Self:
        """A copy with some fields replaced. Raises if a name is unknown."""
        if unknown := [name for name in changes if name not in FIELDS]:
            raise BadParams(
                f"{unknown[0]:.60}", f"is not a sampling parameter; available: {', '.join(FIELDS)}"
            )
        return replace(self, **changes)


FIELDS = tuple(field.name for field in fields(SamplingParams))


def _number(name: str, value: Any, low: float, high: float, *, above: bool = False) -> None:
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not (low < value if above else low <= value) or value > high:
        raise BadParams(
            name, f"must be a number {'above' if above else 'from'} {low:g} to {high:g}, not {value!r:.60}"
        )


def _whole(name: str, value: Any, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise BadParams(name, f"must be a whole number from {low} to {high}, not {value!r:.60}")


def _flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise BadParams(name, f"must be true or false, not {value!r:.60}")


def _unicode(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadParams(name, f"must be valid Unicode, not {text!r:.60}") from None


def _stops(value: Any) -> tuple[str, ...]:
    stops = (value,) if isinstance(value, str) else _listed("stop", value)
    if len(stops) > MAX_STOPS:
        raise BadParams("stop", f"at most {MAX_STOPS} stop strings, not {len(stops)}")
    for stop in stops:
        if not isinstance(stop, str) or not stop:
            raise BadParams("stop", f"must be non-empty strings, not {stop!r:.60}")
        _unicode("stop", stop)
    return stops


def _words(value: Any) -> tuple[str, ...]:
    words = _listed("bad_words", value)
    if len(words) > MAX_BAD_WORDS:
        raise BadParams("bad_words", f"at most {MAX_BAD_WORDS} texts, not {len(words)}")
    for word in words:
        if not isinstance(word, str) or not word.strip() or len(word) > MAX_BAD_WORD:
            raise BadParams("bad_words", f"must be texts of 1 to {MAX_BAD_WORD} characters, not {word!r:.60}")
        _unicode("bad_words", word)
    return words


def _ids(name: str, value: Any) -> tuple[int, ...]:
    ids = _listed(name, value)
    for token in ids:
        _whole(name, token, 0, 2**31 - 1)
    return ids


def _biases(value: Any) -> tuple[tuple[int, float], ...]:
    pairs = _listed("logit_bias", value.items() if isinstance(value, Mapping) else value)
    if len(pairs) > MAX_BIASED:
        raise BadParams("logit_bias", f"at most {MAX_BIASED} tokens, not {len(pairs)}")
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise BadParams("logit_bias", f"must map token ids to numbers, not contain {pair!r:.60}")
        _whole("logit_bias", pair[0], 0, 2**31 - 1)
        _number("logit_bias", pair[1], -100.0, 100.0)
    return tuple(sorted((token, float(bias)) for token, bias in dict(pairs).items()))


def _listed(name: str, value: Any) -> tuple[Any, ...]:
    if type(value) in (tuple, list):  # the checks below take microseconds
        return tuple(value)
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise BadParams(name, f"must be a list, not {value!r:.60}")
    return tuple(value)
