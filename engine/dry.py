"""The whole engine without weights: scheduling, cache and events are real, the tokens are made up.

It serves to develop clients and to test everything above the model. A reply depends on the prompt and the
seed alone; sampling parameters do not change it.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np

from engine.api.config import EngineConfig
from engine.api.errors import BadInput
from engine.api.events import Bus, TokenLogprob
from engine.api.params import SamplingParams
from engine.api.request import Request
from engine.api.snapshot import SchemeView
from engine.api.speeds import Reads, Speeds
from engine.execution.changes import RunnerChange
from engine.execution.protocol import BAD, Compilation, Fit, ReadAdapter, StepKind, StepResult, TopTokens
from engine.grammar.grammars import Grammars
from engine.kv.pool import BlockPool
from engine.kv.tables import BlockTables
from engine.kv.tiers.tier import TransferOrder
from engine.models.find import find_model
from engine.scheduling.policy import choose
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.settings import SchedulerSettings
from engine.scheduling.step import Drafts, Masks, Step
from engine.serving.engine import Engine
from engine.serving.info import EngineInfo
from engine.serving.limits import Limits
from engine.speculation.verify import run_of
from engine.text.reasoning import CLOSE, OPEN
from engine.text.tokenizer import Tokenizer

WORDS = (
    "a about after again all and as at before below bird bright by cloud day deep door down each early far "
    "field fire first from garden green hand high hill home in into it lamp late leaf light like long moon "
    "morning near night of old on one open over paper path quiet rain river road room round sea slow small "
    "snow some song star still stone sun that the then there this through time to town tree under until "
    "warm water way when where white wide wind window with word year"
).split()
_SHORTEST, _LONGEST = 12, 90  # words of a reply
_TAIL = 16  # last tokens of a prompt, which may open a <think> section
_CONTEXT = 32_768
_HIDDEN = 64  # numbers of a hidden state
_QUICK = '"}]1:,{['  # the characters that finish JSON soonest, most preferred first

Script = Callable[[Sequence[int], SamplingParams], list[int]]  # the reply's tokens without the stop token


class DryRunner:
    """A runner that executes a step by sleeping for the time the step should take."""

    graphs: bool | None = None
    weights_scheme = "none"
    graph_sizes: Sequence[int] = ()
    piece_sizes: Sequence[int] = ()

    def __init__(
        self,
        requests: Mapping[int, Request],
        script: Script,
        stop_ids: frozenset[int],
        vocab: int,
        rate: float | None,
        quick: Sequence[int],
    ) -> None:
        self._requests, self._script, self._vocab = requests, script, vocab
        self._quick = (*sorted(stop_ids), *quick)
        self._end = min(stop_ids, default=None)
        self._seconds = 1 / rate if rate else 0.0  # per step, and each step gives every request one token
        self._due = 0.0  # when the step in progress ends
        self._replies: dict[int, list[int]] = {}
        self._allowed: dict[int, np.ndarray] = {}  # by slot: the tokens the grammar allows
        self.broken: Callable[[Step], None] = lambda step: None  # tests make it raise

    def start_compiling(self, kinds: Sequence[StepKind]) -> Sequence[Compilation]:
        return ()

    def capture(self, kinds: Sequence[StepKind]) -> None:
        """There are no graphs."""

    def launch(self, step: Step) -> tuple[Step, float]:
        self.broken(step)
        return step, time.monotonic()

    def supply(self, handle: tuple[Step, float], masks: Masks) -> None:
        self._allowed = dict(zip(masks.slots, masks.bits, strict=True))

    def collect(self, handle: tuple[Step, float]) -> StepResult:
        step, began = handle
        tokens, runs, logprobs, searching = [], {}, {}, []
        for row in step.rows:
            if row.samples:
                request = self._requests[row.request]
                run = self._run(request, step.drafts.get(request.id))
                tokens.append(run[0])
                if row.drafted:
                    runs[request.id] = run
                if (most := request.params.logprobs) is not None:
                    exact = request.params.logprob_token_ids
                    logprobs[request.id] = tuple(self._likely(token, most, exact) for token in run)
                if request.params.beams > 1:
                    searching.append((request.id, tokens[-1]))
        for gone in self._replies.keys() - self._requests.keys():
            del self._replies[gone]
        # Steps follow each other at the rate, whatever the work between them takes.
        on_time = began < self._due + self._seconds
        self._due = (self._due if on_time else began) + self._seconds
        if (left := self._due - time.monotonic()) > 0:
            time.sleep(left)
        top_tokens = self._top_tokens(searching) if searching else None
        seconds = time.monotonic() - began
        prompts = {
            id: tuple(self._likely(token, most) for token in targets)
            for id, (_, targets, most) in step.targets.items()
        }
        sums = {id: self._sum(self._requests[id], *span) for id, span in step.spans.items()}
        return StepResult(tokens, logprobs, seconds, top_tokens, runs, prompts, sums)

    def _sum(self, request: Request, first: int, length: int) -> np.ndarray:
        """Return the sum of made-up hidden states, which depend only on the token."""
        tokens = request.tokens[first : first + length]
        states = [np.random.default_rng(token).standard_normal(_HIDDEN, np.float32) for token in tokens]
        total: np.ndarray = np.sum(states, axis=0)
        return total

    def _top_tokens(self, rows: Sequence[tuple[int, int]]) -> TopTokens:
        """Return each row's candidates: the scripted token is the most likely, the others follow."""
        most = max(self._requests[id].params.candidates(len(self._quick)) for id, _ in rows)
        after = np.arange(min(most, self._vocab))
        ids = (np.array([token for _, token in rows])[:, None] + after) % self._vocab
        values = np.tile((-0.7 * (after + 1)).astype(np.float32), (len(rows), 1))
        return TopTokens({id: at for at, (id, _) in enumerate(rows)}, ids, values)

    def _kept(self, request: Request, scripted: Sequence[int]) -> int:
        """Return the scripted token if the grammar allows it, else one that ends the reply soon."""
        bits = np.unpackbits(self._allowed[request.slot], bitorder="little")
        likely = (*scripted, *self._quick, *bits.nonzero()[0][:1].tolist())
        return next((token for token in likely if bits[token]), BAD)

    def _run(self, request: Request, drafts: Drafts | None) -> list[int]:
        """Return the next token; with drafts, the accepted ones and one more."""
        if drafts is None:
            return [self._next(request)]
        return run_of([self._next(request, ahead) for ahead in range(1 + drafts.length)], drafts.tokens)

    def _next(self, request: Request, ahead: int = 0) -> int:
        if request.id not in self._replies:
            prompt = request.tokens[: request.prompt_len]
            seed = None if request.params.seed is None else request.seed  # each sample has its own
            self._replies[request.id] = self._script(prompt, replace(request.params, seed=seed)) or [0]
        reply, at, params = self._replies[request.id], request.generated + ahead, request.params
        if params.guided:
            return self._kept(request, reply[at : at + 1])
        ends = self._end is not None and not params.ignore_eos and at >= params.min_tokens
        if at >= len(reply) and ends:
            assert self._end is not None
            return self._end
        return reply[at % len(reply)]

    def _likely(self, token: int, count: int, exact: Sequence[int] = ()) -> TokenLogprob:
        """Return the scripted token and its neighbors, each half as likely as the one before.

        `exact`: the tokens to return in place of these.
        """
        neighbors = exact or [(token + n) % self._vocab for n in range(count)]
        top = [(each, -0.7 * ((each - token) % self._vocab + 1)) for each in neighbors]
        return TokenLogprob(token, -0.7, 1, tuple(top))

    def skip(self, step: Step) -> None:
        """No-op: there is no state to update."""

    def transfer(self, order: TransferOrder) -> None:
        raise AssertionError("a dry run has no tiers")

    def transferred(self, *, wait: bool = False) -> tuple[()]:
        return ()

    def follow(self, transfer: int) -> bool:
        return False

    def apply(self, change: RunnerChange) -> None:
        raise BadInput("a dry run has no model and no KV cache to change")

    def read_adapter(self, folder: Path) -> ReadAdapter:
        raise BadInput("a dry run has no model to add an adapter to")

    def fit(self) -> Fit:
        raise BadInput("a dry run has no KV cache to resize")

    def weight_schemes(self) -> tuple[SchemeView, ...]:
        return ()

    def plan_weights(self, scheme: str) -> None:
        return None

    def enter_thread(self) -> None: ...

    def device_error(self) -> str | None:
        return None

    def memory(self) -> dict[str, int]:
        return {}

    def kv_schemes(self) -> tuple[SchemeView, ...]:
        return ()

    def split(self) -> None:
        return None

    def load(self) -> None:
        return None

    def experts(self) -> None:
        return None

    def reads(self) -> Reads:
        return Reads()

    def speeds(self) -> Speeds:
        raise BadInput("a dry run has no device to measure")


def dry_engine(
    config: EngineConfig,
    *,
    rate: float | None = None,
    script: Script | None = None,
    tokenizer: Tokenizer | None = None,
) -> Engine:
    """Return an engine that reads only the model's tokenizer. `rate`: tokens per second of each reply."""
    if config.adapters:
        raise BadInput("a dry run has no model to add adapters to")
    place = find_model(config.model, dummy=True)
    text = tokenizer or Tokenizer.load(place.folder)
    size, context = config.block_size, config.max_context or _CONTEXT
    blocks = config.blocks or 4 * context // size
    asked, context = context, min(context, blocks * size)
    bus, tables = Bus(), BlockTables(config.max_running, -(-context // size))
    policy = choose(config.policy, config.latency_target)
    scheduler = Scheduler(
        pool=BlockPool(blocks, size),
        tables=tables,
        policy=policy,
        rules=SchedulerSettings(step_tokens=config.max_step_tokens or 8192, prefix_cache=config.prefix_cache),
        emit=bus.emit,
    )
    scheduler.pace.limit(config.max_slowdown)
    return Engine(
        scheduler=scheduler,
        runner=DryRunner(
            scheduler.requests,
            script or random_words(text),
            text.stop_ids,
            text.vocab_size,
            rate,
            [text.encode(each)[-1] for each in _QUICK],
        ),
        grammars=Grammars(text, text.vocab_size, text.stop_ids),
        tokenizer=text,
        limits=Limits(
            context,
            text.vocab_size,
            config.max_waiting,
            text.stop_ids,
            longest=asked,
            chosen=config.max_context is not None,
        ),
        info=EngineInfo(f"{place.name} (dry)", "none", "none", "none", policy.name),
        bus=bus,
        seed=config.seed or 0,
        first_request=config.first_request,
    )


def random_words(tokenizer: Tokenizer) -> Script:
    """A script of random words, the same for the same prompt and seed. It closes an open <think> section."""

    def script(prompt: Sequence[int], params: SamplingParams) -> list[int]:
        digest = sha256(repr((list(prompt), params.seed)).encode()).digest()
        draw = random.Random(digest)
        words = draw.choices(WORDS, k=draw.randint(_SHORTEST, _LONGEST))
        if tokenizer.decode(prompt[-_TAIL:]).rstrip().endswith(OPEN):
            words.insert(_SHORTEST // 2, f"so.\n{CLOSE}\n\nand")
        return tokenizer.encode(" ".join(words).capitalize() + ".")

    return script
