"""The cost of a grammar: reading the vocabulary, compiling, and the mask of each token.

Compares llguidance, as the engine uses it, with xgrammar if it is installed. Both process the same
replies. `--tokenizer` is the folder of another tokenizer.
"""

import importlib.util
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from engine.api.params import Grammar
from engine.grammar.source import source
from engine.grammar.vocabulary import Vocabulary, readable
from engine.text.tokenizer import Tokenizer
from minichat.bench.harness import Bench

POCKET = Path(__file__).resolve().parents[2] / "engine" / "pocket"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "mail": {"type": "string", "pattern": "^[a-z]+@[a-z]+\\.org$"},
        "likes": {"type": "array", "items": {"enum": ["tea", "chess", "rain", "trains"]}},
        "home": {
            "type": "object",
            "properties": {"town": {"type": "string"}, "post": {"type": "string", "pattern": "^[0-9]{5}$"}},
            "required": ["town", "post"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "mail", "likes", "home"],
    "additionalProperties": False,
}
ANNA = {
    "name": "Anna Lindgren, who lives by the sea",
    "age": 41,
    "mail": "anna@example.org",
    "likes": ["tea", "rain", "trains"],
    "home": {"town": "Göteborg", "post": "41101"},
}
WORDS = "The light over the hill was quiet. A road went on, past the old door."
CASES = {
    "schema": (Grammar("json", json.dumps(PERSON)), json.dumps(ANNA, ensure_ascii=False)),
    "any object": (Grammar("json", '{"type": "object"}'), json.dumps(ANNA, ensure_ascii=False)),
    "regex": (Grammar("regex", "[A-Za-z ,.]{20,200}"), WORDS),
    "choice": (Grammar("choice", json.dumps([f"number {n}" for n in range(500)])), "number 417"),
}


class Followed(NamedTuple):
    """The seconds that each part of one reply took."""

    compiling: float
    masks: list[float]
    taking: list[float]


class Library(Protocol):
    def follow(self, grammar: Grammar, tokens: list[int]) -> Followed: ...


class Guidance:
    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        self._vocabulary: LLTokenizer = readable(tokenizer, vocab)
        self._mask = allocate_token_bitmask(1, vocab + 1)

    def follow(self, grammar: Grammar, tokens: list[int]) -> Followed:
        began = time.perf_counter()
        matcher = LLMatcher(self._vocabulary, source(grammar), log_level=0)
        compiling = time.perf_counter() - began
        return timed(
            compiling, tokens, lambda: fill_next_token_bitmask(matcher, self._mask), matcher.consume_token
        )


class Xgrammar:
    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        self._library: Any = importlib.import_module("xgrammar")
        pieces = Vocabulary(tokenizer, vocab).tokens[:vocab]
        self._info = self._library.TokenizerInfo(
            pieces, vocab_size=vocab, stop_token_ids=sorted(tokenizer.stop_ids)
        )
        self._mask = self._library.allocate_token_bitmask(1, vocab)

    def follow(self, grammar: Grammar, tokens: list[int]) -> Followed:
        library, text = self._library, grammar.text
        compiler = library.GrammarCompiler(self._info, max_threads=2, cache_enabled=False)
        began = time.perf_counter()
        match grammar.kind:
            case "json":
                compiled = compiler.compile_json_schema(text, strict_mode=False, max_whitespace_cnt=32)
            case "regex":
                compiled = compiler.compile_regex(text)
            case "choice":
                compiled = compiler.compile_regex("|".join(json.loads(text)))
        compiling = time.perf_counter() - began
        matcher = library.GrammarMatcher(compiled)
        return timed(
            compiling, tokens, lambda: matcher.fill_next_token_bitmask(self._mask), matcher.accept_token
        )


def timed(
    compiling: float, tokens: list[int], mask: Callable[[], object], take: Callable[[int], bool]
) -> Followed:
    masks, taking = [], []
    for token in tokens:
        began = time.perf_counter()
        mask()
        between = time.perf_counter()
        assert take(token), f"token {token} is rejected"
        masks.append(between - began)
        taking.append(time.perf_counter() - between)
    return Followed(compiling, masks, taking)


Kind = Callable[[Tokenizer, int], Library]


def vocabulary(bench: Bench, kinds: dict[str, Kind], text: Tokenizer, size: int) -> None:
    for name, kind in kinds.items():
        began = time.perf_counter()
        kind(text, size)
        bench.note(f"{name}: a vocabulary of {size}", time.perf_counter() - began, "s")


def replies(bench: Bench, kinds: dict[str, Kind], text: Tokenizer, size: int) -> None:
    libraries = {name: kind(text, size) for name, kind in kinds.items()}
    for case, (grammar, reply) in CASES.items():
        tokens = text.encode(reply)
        runs: dict[str, list[Followed]] = {name: [] for name in libraries}
        for at in range(bench.warmup + bench.repeats):
            for name in sorted(libraries, reverse=at % 2 == 1):
                runs[name].append(libraries[name].follow(grammar, tokens))
        for name, all_of in runs.items():
            counted = all_of[bench.warmup :]
            masks = [each for run in counted for each in run.masks]
            bench.note(f"{name}, {case}: compile", [each.compiling for each in counted], "s")
            bench.note(f"{name}, {case}: mask", masks, "s")
            bench.note(
                f"{name}, {case}: mask, slowest of a reply", [max(each.masks) for each in counted], "s"
            )
            bench.note(f"{name}, {case}: take", [each for run in counted for each in run.taking], "s")


PARTS = {part.__name__: part for part in (vocabulary, replies)}


def run(bench: Bench, *, tokenizer: str = "", vocab: int = 0, only: tuple[str, ...] = tuple(PARTS)) -> None:
    """`vocab`: the model's vocabulary size, if it is larger than the tokenizer's."""
    text = Tokenizer.load(Path(tokenizer) if tokenizer else POCKET)
    kinds: dict[str, Kind] = {"llguidance": Guidance}
    if importlib.util.find_spec("xgrammar"):
        kinds["xgrammar"] = Xgrammar
    for name in only:
        PARTS[name](bench, kinds, text, vocab or text.vocab_size)
