"""How well an engine knows a long text if its requests keep only some tokens: perplexity and recall."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from engine.api.config import EVICTIONS, EngineConfig
from engine.api.errors import BadInput
from engine.api.events import TokenLogprob
from engine.api.params import SamplingParams
from engine.serving.engine import Engine
from engine.start import start

NEEDLE = " The word to remember is"
WORDS = (
    *("Orla", "Fenwick", "Tamsin", "Bram", "Ilse", "Quill"),
    *("Marlow", "Juno", "Wren", "Otis", "Pavel", "Suki"),
)
HAYSTACK = 400  # tokens of text around a needle, or three quarters of the context if that is less


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """The measurements of one policy with one budget."""

    policy: str  # "all", "window" or the name of an eviction policy
    tokens: int  # that a request keeps
    perplexity: float  # of the text
    recall: float  # the share of a needle's tokens that are predicted when its sentence is repeated


def compare_budgets(
    config: EngineConfig,
    budgets: Sequence[int],
    text: str,
    *,
    most: int = 2048,
    refused: Callable[[str, str], None] = lambda policy, reason: None,
    begun: Callable[[str], None] = lambda row: None,
) -> Iterator[BudgetRow]:
    """Yield a row for the whole cache, then one for each budget and policy, windows first. `begun` is called
    for each that is measured next.
    """
    config = replace(config, kv_window=None, kv_budget=None, kv_disk=None, prefix_cache=False)
    pairs = [(policy, tokens) for tokens in budgets for policy in ("window", *EVICTIONS)]
    begun(f"all tokens (1 of {len(pairs) + 1})")
    yield _row(start(config), "all", 0, text, most)
    for at, (policy, tokens) in enumerate(pairs, 2):
        name = f"{policy} of {tokens} tokens"
        if tokens < (least := least_tokens(config, policy)):
            refused(name, f"it needs at least {least} tokens")
            continue
        begun(f"{name} ({at} of {len(pairs) + 1})")
        try:
            engine = start(_bounded(config, policy, tokens))
        except BadInput as error:
            refused(name, str(error))
        else:
            yield _row(engine, policy, tokens, text, most)


def least_tokens(config: EngineConfig, policy: str = "window") -> int:
    """The fewest tokens that a request can keep with this policy. A window needs the fewest."""
    return config.kv_sinks + config.block_size if policy == "window" else config.least_budget


def _bounded(config: EngineConfig, policy: str, tokens: int) -> EngineConfig:
    if policy == "window":  # it also keeps the sinks
        return replace(config, kv_window=tokens - config.kv_sinks)
    [name] = (each for each in EVICTIONS if each == policy)
    return replace(config, kv_budget=tokens, kv_eviction=name)


def _row(engine: Engine, policy: str, tokens: int, text: str, most: int) -> BudgetRow:
    ids = list(engine.tokenizer.encode(text))[: min(most, engine.limits.context - 1)]
    if len(ids) < 2:
        raise BadInput(f"the text has {len(ids)} tokens; use at least 2, or several hundred")
    surprise = -sum(each.logprob for each in _read(engine, ids)) / (len(ids) - 1)
    found = [hit for place in range(len(WORDS)) for hit in _hits(engine, ids, place)]
    return BudgetRow(policy, tokens or len(ids), math.exp(surprise), sum(found) / len(found))


def _hits(engine: Engine, ids: list[int], place: int) -> list[bool]:
    """Whether each token of a needle is predicted at the end of a text that holds it somewhere."""
    encode, word = engine.tokenizer.encode, WORDS[place]
    cue, needle = list(encode(NEEDLE)), list(encode(f"{NEEDLE} {word}"))
    hay = ids[: min(HAYSTACK, engine.limits.context * 3 // 4 - 2 * len(needle))]
    at = len(hay) * (1 + place) // (2 + len(WORDS))
    end = list(encode(f"{NEEDLE} {word}."))
    asked = len(needle) - len(cue)
    read = _read(engine, [*hay[:at], *end, *hay[at:], *needle])
    return [each.rank == 1 for each in read[-asked:]]


def _read(engine: Engine, ids: Sequence[int]) -> list[TokenLogprob]:
    """The log-probability of each token but the first, computed as in a request."""
    found: list[TokenLogprob] = []
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    engine.submit(ids, params, lambda delta: found.extend(delta.prompt_logprobs))
    while engine.busy:
        engine.step()
    return found
