"""Several replies to one prompt. The prompt is computed once, and the other replies fork from the first."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256

from engine.api.events import Delta, TokenLogprob
from engine.api.params import SamplingParams
from engine.api.request import Finish, Request
from engine.api.speculation import Speculation
from engine.serving.reply import ReplyOutput, Sink, TextStream


def seed_of(seed: int, choice: int) -> int:
    """The seed of one of several replies: the first has the request's own, the others are derived from it."""
    if choice == 0:
        return seed % 2**64
    return int.from_bytes(sha256(f"{seed % 2**64} {choice}".encode()).digest()[:8], "little")


@dataclass(slots=True)
class FinishedSample:
    """A reply that is sent once it is known to be among the best."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: Finish | None = None
    error: str = ""
    fault: str = ""
    blocks: int = 0
    stop: str = ""
    decoding: float = 0.0
    speculation: Speculation | None = None

    def add(self, delta: Delta) -> None:
        self.tokens += delta.tokens
        self.text += delta.text
        self.logprobs += delta.logprobs
        self.finish, self.error, self.fault = delta.finish, delta.error, delta.fault
        self.blocks, self.stop, self.decoding = delta.blocks, delta.stop, delta.decoding
        self.speculation = delta.speculation

    @property
    def mean(self) -> float:
        """Mean log-probability of a token."""
        return sum(each.logprob for each in self.logprobs) / max(1, len(self.logprobs))

    @property
    def rank(self) -> tuple[bool, float]:
        return self.finish is Finish.FAILED, -self.mean


class SampleGroup:
    """Its rows are ordinary requests with their own replies, whose deltas pass through here."""

    def __init__(self, root: Request, written: TextStream, sink: Sink, number: Callable[[], int]) -> None:
        self.id, self.members = root.id, [root]
        self.requested_params, self._sink, self._written = root.params, sink, written.copy()
        others = [number() for _ in range(root.params.samples - 1)]  # reserved now to keep the queue position
        self._ids = [root.id, *others]
        self.whole = False  # whether all replies have started
        self._running = len(self._ids)
        self._base = len(root.tokens)
        self._seed = root.seed
        self._best = [FinishedSample() for _ in self._ids] if root.params.best_of else []
        root.group = root.id
        root.params = self.of_member(root.params)

    def retune(self, params: SamplingParams, *, seed: bool) -> None:
        """Change parameters, also of replies that have not started. `seed`: the seed changes too."""
        self.requested_params = params
        self._written.retune(params)
        if seed and params.seed is not None:
            self._seed = params.seed % 2**64

    def seed_of(self, member: Request) -> int:
        return seed_of(self._seed, self._ids.index(member.id))

    def of_member(self, params: SamplingParams) -> SamplingParams:
        """The parameters of one row. Ranking replies needs the log-probabilities of their tokens."""
        return replace(params, logprobs=params.logprobs or 0) if self._best else params

    def reply(self, written: TextStream, choice: int = 0) -> ReplyOutput:
        return ReplyOutput(written, partial(self._forward, choice))

    def start_others(self) -> Iterable[tuple[Request, ReplyOutput]]:
        """Start the other replies from the end of the prompt, which the first has computed."""
        root, self.whole = self.members[0], True
        for choice, id in enumerate(self._ids[1:], 1):
            child = Request(
                id=id,
                tokens=root.tokens[: self._base],
                prompt_len=root.prompt_len,
                params=root.params,
                seed=seed_of(self._seed, choice),
                max_len=root.max_len,
                arrived=root.arrived,
                priority=root.priority,
                deadline=root.deadline,
                salt=root.salt,
                adapter=root.adapter,
                group=self.id,
                guided_from=min(root.guided_from, self._base),  # a first token in flight belongs to the root
            )
            child.scored = root.scored
            self.members.append(child)
            yield child, self.reply(self._written.copy(), choice)

    def _forward(self, choice: int, delta: Delta) -> None:
        if not delta.finish:
            self._send(choice, delta, 0)
        elif self.whole:
            self._running -= 1
            self._send(choice, delta, self._running)
        else:  # it ended before any token, so the others end with it
            self._send(0, delta, len(self._ids) - 1)
            for other in range(1, len(self._ids)):
                self._send(other, delta._replace(blocks=0), len(self._ids) - 1 - other)

    def _send(self, choice: int, delta: Delta, left: int) -> None:
        if not self._best or delta.prompt_logprobs:
            self._sink(delta._replace(request=self.id, choice=choice, left=left))
            return
        self._best[choice].add(delta)
        ranked = sorted(self._best, key=lambda each: each.rank)
        if not delta.finish or left:
            self._sink(Delta(self.id, tail=ranked[0].text))
            return
        given = ranked[: self.requested_params.n]
        unsent = sum(len(each.tokens) for each in ranked[len(given) :])
        for at, each in enumerate(given):
            logprobs = () if self.requested_params.logprobs is None else tuple(each.logprobs)
            whole = Delta(self.id, tuple(each.tokens), each.text, logprobs, each.finish, each.error)
            left = len(given) - 1 - at
            whole = whole._replace(choice=at, left=left, score=each.mean, decoding=each.decoding)
            whole = whole._replace(fault=each.fault, blocks=each.blocks, stop=each.stop)
            whole = whole._replace(speculation=each.speculation, unsent=0 if left else unsent)
            self._sink(whole)
