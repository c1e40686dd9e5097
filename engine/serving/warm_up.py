"""Runs steps of every kind before the first request, so that no request waits for a compiler.

On a GPU the first step of a kind compiles its kernels, and the first of a batch size captures the graph that
the others replay. The warm-up compiles most kernels in parallel, sends requests of its own, and captures the
graphs of the usual steps, for some batch sizes (execution/cuda/sizes.py). Other requests have priority: when
one arrives, the warm-up's requests end, and the part that sent them runs again once the engine is idle.

Other graphs are captured one at a time while the engine is idle; a step that needs one earlier captures it
itself. Steps with pieces of prompts come first: each has only its own graph, and the first prompts of a burst
would wait for it. Rarer decodes follow, and steps that wait layer by layer for blocks from host memory. Of
these only usual messages are captured, because a capture takes longer than one such wait saves. Steps with
adapters have their own graphs, which are captured once an adapter is loaded.

The engine of a screen is ready without any of this. While it is idle, it compiles the kernels of a first
message and its reply: meanwhile the user reads and types. Every engine does so again after its weights or
cache have changed.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product, takewhile
from typing import Any

from engine.api.errors import EngineError
from engine.api.events import (
    AdapterChanged,
    Delta,
    Event,
    Quantized,
    Recached,
    RequestEvent,
    TierProblem,
    log,
)
from engine.api.params import SamplingParams
from engine.api.request import Finish
from engine.execution.cuda.sizes import first_sizes
from engine.execution.protocol import RARE, Compilation, StepKind
from engine.serving.engine import Engine
from engine.timeline import Stopwatch

_TOGETHER = 8  # kinds of steps; commands wait until their kernels are handed to the compiler
_PATIENCE = 0.02  # seconds that commands wait for the compiler
_LOADED = 25  # such waits until kernels that only need loading are ready
_SCORED = 256  # tokens of a prompt whose log-probabilities are returned
_MESSAGE = 256  # tokens of most messages in a chat
_SHORTEST = 16  # tokens of a message, with what the chat format adds
_DRAFTS = (1, 2, 4, 8)  # tokens that a draft model drafts
_LIBRARY = 33  # tokens of a prompt from which products may come from a library, which loads its own kernels
_PLAIN: dict[str, Any] = {"temperature": 1.0}
_RARER = ({"frequency_penalty": 0.1, "logprobs": 5}, {"logit_bias": {0: 1.0}})  # compiled at one size

Part = partial[Iterator[None]]


class WarmUp:
    """Call `step` on the engine's thread in place of the engine's, until it is `over`."""

    def __init__(self, engine: Engine, sizes: Sequence[int], *, whole: bool = True) -> None:
        """`sizes`: batch sizes of the runner's graphs; without any, there is nothing to do.

        `whole`: before the first request. Otherwise an idle engine compiles what a first message needs.
        """
        self._engine, self._sizes = engine, sizes
        self._own: set[int] = set()  # requests that have not ended
        self._submitted: set[int] = set()
        self._salts = 0
        self._undisturbed = True
        parts, later = self._all_parts() if sizes and whole else ((), ())
        self._total, self._later = len(parts), len(later)
        self._parts = deque([*parts, *later])
        if sizes and not whole:
            self._add_message()
        self._running: Iterator[None] | None = None
        self._watch = Stopwatch(self.part)
        if sizes:
            engine.bus.subscribe(self._hear)
        if sizes and engine.adapters.loads:
            self._add_adapted()

    def _hear(self, event: Event) -> None:
        if isinstance(event, AdapterChanged) and event.loaded:
            self._add_adapted()
        elif isinstance(event, Recached) or (isinstance(event, Quantized) and not event.error):
            self._add_message()

    def _add_message(self) -> None:
        """Have an idle engine compile the kernels of a prompt and its reply, then of others beside it."""
        lengths = [each for each in self._lengths if each >= min(_SHORTEST, self._longest)]
        largest = max(self._engine.runner.piece_sizes, default=0)
        for prompt, replies in ((0, self._sizes[:1]), (1, self._sizes[1:3])):  # rows beside it, rows
            kinds = [StepKind(prompt, each) for each in lengths]
            kinds += [StepKind(rows, long=long) for rows in replies for long in (False, True)]
            kinds += [StepKind(prompt, each, pieces=True) for each in lengths if prompt + each <= largest]
            self._parts.append(partial(self._compile, kinds))
            self._later += 1

    def _add_adapted(self) -> None:
        """Have an idle engine prepare decodes with adapters, which takes no time if it has their graphs."""
        kinds = [StepKind(size, long=long, adapted=True) for size in self._sizes for long in (False, True)]
        self._parts += [partial(self._compile, kinds), partial(self._capture, kinds)]
        self._later += 2

    @property
    def share(self) -> float:
        """The finished share of what requests need."""
        return 1 - (len(self._parts) - self._later) / self._total if len(self._parts) > self._later else 1.0

    @property
    def over(self) -> bool:
        """Whether nothing is left for an idle engine either."""
        return not self._parts

    @property
    def part(self) -> str:
        """What it runs now, the name of a method; "" once it is over."""
        return self._parts[0].func.__name__.strip("_") if self._parts else ""

    def step(self) -> bool:
        """Submit the next requests, or end ours if there are others; then run a step."""
        bus = self._engine.bus
        bus.hides = self._hides
        try:
            if self._engine.outputs.alive > len(self._own):
                self._yield_to_others()
            elif len(self._parts) > self._later or (self._parts and not self._engine.busy):
                self._advance()
            return self._engine.step()
        finally:
            bus.hides = None

    def _hides(self, event: Event) -> bool:
        """Whether an event is about our requests. Copies for others may end after those have ended."""
        if isinstance(event, RequestEvent):
            return event.request in self._submitted
        return bool(self._own) and not isinstance(event, TierProblem)

    def _yield_to_others(self) -> None:
        self._undisturbed, self._running = False, None
        self._end_own()

    def _end_own(self) -> None:
        for id in tuple(self._own):
            self._engine.abort(id)

    def _advance(self) -> None:
        try:
            if self._running is None:
                self._running, self._watch = self._parts[0](), Stopwatch(f"warming: {self.part}")
            next(self._running)
        except StopIteration:
            self._watch.end()
            self._running = None
            self._parts.popleft()
            if len(self._parts) == self._later and self._undisturbed:
                self._leave_no_trace()
        except EngineError as error:
            log.warning("the warm-up ended early; first steps of a kind will be slow: %s", error)
            self._end_own()
            self._parts.clear()

    def _leave_no_trace(self) -> None:
        engine, scheduler = self._engine, self._engine.scheduler
        engine.meters.reset()
        scheduler.pool.forget_all()
        scheduler.prompt_tokens = scheduler.cached_tokens = 0
        scheduler.pace.forget()

    @property
    def _longest(self) -> int:
        """Tokens of the longest prompt that a step computes."""
        return min(self._engine.limits.context - 1, self._engine.scheduler.rules.step_tokens)

    @property
    def _lengths(self) -> Sequence[int]:
        """Lengths of prompts whose steps use all kernels."""
        longest = self._longest
        return [*takewhile(lambda length: length < longest, (2**bits for bits in range(32))), longest]

    def _all_parts(self) -> tuple[Sequence[Part], Sequence[Part]]:
        """The parts before the first request, and those for an idle engine."""
        # Those of one size together: they have kernels in common.
        batches = [StepKind(*kind) for kind in product(self._sizes, (0,), (False, True), (False, True))]
        first = first_sizes(self._sizes)
        early = [kind for kind in batches if kind.rows in first and kind.long]  # these can hold others, too
        late = [kind for kind in batches if kind not in early]
        filtered = [kind for kind in batches if kind.filtered]
        return self._first_parts(early, late), self._idle_parts(late, filtered)

    def _first_parts(self, early: list[StepKind], late: list[StepKind]) -> Sequence[Part]:
        longest, lengths = self._longest, self._lengths
        prompts = [StepKind(rows, length) for rows in (0, 1) for length in lengths]
        sampled = [StepKind(1, long=True, sampling=each) for each in RARE]
        sampled += [StepKind(0, longest, sampling=each) for each in RARE]
        run = [each for each in reversed(lengths) if each >= min(_LIBRARY, longest)]
        largest = max(self._engine.runner.piece_sizes, default=0)
        graphs = [StepKind(0, each, pieces=True) for each in run if each <= largest]
        full = [StepKind(1, longest - 1, long=True, pieces=True)] if 1 < longest <= largest else []
        counts = _DRAFTS if "draft" in self._engine.limits.speculation and longest > 5 * max(_DRAFTS) else ()
        return [
            partial(self._compile, prompts + early + graphs + full + sampled, late),
            *(partial(self._prompt, each) for each in run),
            *([partial(self._capture, full)] if full else ()),
            partial(self._prompt_beside_a_row, longest),
            partial(self._prompt, 1, tokens=2),  # the first of all graphs runs without being captured
            partial(self._capture, [kind for kind in early if not kind.filtered]),
            *(partial(self._prompt, 1, _PLAIN | params, tokens=3) for params in _RARER),
            partial(self._prompt, min(_SCORED, longest), _PLAIN | {"prompt_logprobs": 1}),
            *(partial(self._draft, count) for count in counts),
            partial(self._measure, run),
        ]

    def _idle_parts(self, late: list[StepKind], filtered: list[StepKind]) -> Sequence[Part]:
        sizes = [size for size in self._engine.runner.piece_sizes if size < 2 * self._longest]
        alone = [StepKind(0, size, pieces=True) for size in sizes]
        beside = [StepKind(1, size - 1, long=long, pieces=True) for size in sizes for long in (False, True)]
        holding = [kind for kind in beside if kind.long]  # these can hold the others
        waiting = [StepKind(0, size, pieces=True, waits=True) for size in sizes if size <= _MESSAGE]
        rare = [kind for kind in late if not kind.filtered] + filtered
        parts = [
            partial(self._compile, alone + beside + waiting),
            partial(self._capture, alone + holding),
            *([partial(self._compile, late)] if late else ()),
            partial(self._capture, rare + waiting),
        ]
        if self._engine.scheduler.pace.factor is not None:  # then most steps with prompts have pieces
            parts.append(partial(self._capture, beside))
        return parts

    def _compile(self, kinds: Sequence[StepKind], beside: Sequence[StepKind] = ()) -> Iterator[None]:
        """Compile all of them in parallel: alone, a step keeps few cores busy.

        `beside`: kinds that can wait for an idle engine, unless some of `kinds` have to be compiled anyway.
        """
        compilations, waits = list[Compilation](), 0
        try:
            yield from self._start_compiling(kinds, compilations)
            for compilation in compilations:  # also those that are added meanwhile
                while not compilation.wait(_PATIENCE):
                    waits += 1
                    if waits == _LOADED:
                        yield from self._start_compiling(beside, compilations)
                    yield
        except Exception:
            log.exception("kernels were not compiled ahead; a step that needs one reports why")

    def _start_compiling(self, kinds: Sequence[StepKind], begun: list[Compilation]) -> Iterator[None]:
        for start in range(0, len(kinds), _TOGETHER):
            begun += self._engine.runner.start_compiling(kinds[start : start + _TOGETHER])
            yield

    def _capture(self, kinds: Sequence[StepKind]) -> Iterator[None]:
        try:
            for kind in kinds:
                self._engine.runner.capture([kind])
                yield
        except Exception:
            log.exception("graphs were not captured ahead; a step that needs one reports why")

    def _prompt(self, length: int, params: dict[str, Any] = _PLAIN, tokens: int = 1) -> Iterator[None]:
        self._submit(length, tokens, params)
        yield from self._until_done()

    def _measure(self, lengths: Sequence[int]) -> Iterator[None]:
        """Steps again whose first runs loaded kernels, so that what a prompt costs is known from now on."""
        self._engine.scheduler.costs.forget()
        yield from self._prompt(1, tokens=4)
        for length in lengths:
            yield from self._prompt(length)

    def _draft(self, count: int) -> Iterator[None]:
        """Drafts of so many tokens, and steps that verify them.

        What they cost does not count: some of it is the compiler's time.
        """
        params = _PLAIN | {"speculate": "draft", "draft_tokens": count}
        yield from self._prompt(1, params, tokens=4 * (count + 1))
        self._engine.scheduler.speculator.restart()

    def _prompt_beside_a_row(self, length: int) -> Iterator[None]:
        self._submit(1, 4, _PLAIN)
        yield
        self._submit(length, 1, _PLAIN)
        yield from self._until_done()

    def _until_done(self) -> Iterator[None]:
        while self._own:
            yield

    def _submit(self, length: int, tokens: int, params: dict[str, Any]) -> None:
        self._salts += 1  # so that no prompt is found in the cache
        asked = SamplingParams(max_tokens=tokens, ignore_eos=True, seed=0, **params)
        salt = b"warm-up %d" % self._salts
        bus = self._engine.bus
        usual, bus.hides = bus.hides, lambda event: True  # its first event comes before its number is known
        try:
            id = self._engine.submit([0] * length, asked, self._take, salt=salt, chat=None)
        finally:
            bus.hides = usual
        self._own.add(id)
        self._submitted.add(id)

    def _take(self, delta: Delta) -> None:
        if delta.finish is Finish.FAILED:
            log.warning("a step of the warm-up failed: %s", delta.error)
        if delta.last:
            self._own.discard(delta.request)
