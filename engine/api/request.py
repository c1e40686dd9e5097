"""A request: its tokens, its state, and the reason for it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

import numpy as np

from engine.api.params import SamplingParams
from engine.api.speculation import Speculation


def _nothing() -> np.ndarray:
    return np.zeros(0)


class Phase(Enum):
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    PREEMPTED = "preempted"  # its blocks were taken; it will be recomputed
    SWAPPED = "swapped"  # its blocks are stored in a tier below the device, or loading from there
    DONE = "done"


class Finish(Enum):
    STOP = "stop"  # an end token or a stop string
    LENGTH = "length"
    ABORTED = "aborted"
    FAILED = "failed"


class GrammarState(Protocol):
    """The position of a reply in its grammar."""

    @property
    def error(self) -> str:
        """Why no token can follow, or ""."""

    @property
    def fault(self) -> str:
        """The parameter that caused the error."""

    @property
    def over(self) -> bool:
        """Whether the text is complete and nothing may follow."""

    def read(self, tokens: Sequence[int]) -> None:
        """Advance over all new tokens of the request."""

    def allowed(self, enders: Iterable[int], *, early: bool) -> np.ndarray:
        """The tokens that may come next, as a bit mask."""


class Stored(NamedTuple):
    """The stored blocks of a preempted request."""

    tier: str
    names: tuple[bytes, ...]
    transfer: int = -1  # the transfer that stores them; it may have ended
    trimmed: int = 0  # of the request, then


class TierOffer(NamedTuple):
    """What a tier had of a request's prompt, and what decided whether it was loaded or computed."""

    tier: str
    tokens: int
    loaded: bool
    loading: float  # expected seconds; 0: not measured yet
    computing: float


@dataclass(slots=True)
class Evidence:
    """What decides which blocks of a request are evicted."""

    at: int = 0  # the position at which blocks were last evicted
    totals: np.ndarray = field(default_factory=_nothing)  # scores of the blocks that remained then, in order
    reports: dict[int, np.ndarray] = field(default_factory=dict)  # since then, by the block that was filled

    def covers(self, full: int, block_size: int) -> bool:
        """Whether all blocks before `full` that were filled since then have their reports."""
        return all(block in self.reports for block in range(self.at // block_size, full))

    def before(self, full: int) -> "Evidence":
        """A copy without the reports of blocks from `full` on."""
        reports = {block: report for block, report in self.reports.items() if block < full}
        return Evidence(self.at, self.totals, reports)


class Adapter(NamedTuple):
    """A loaded LoRA adapter."""

    name: str
    number: int  # in steps; never used again
    digest: bytes  # of what it computes with: part of the names of blocks
    rank: int = 0
    nbytes: int = 0
    operations: int = 0  # of a token


NO_ADAPTER = Adapter("", 0, b"")


@dataclass(slots=True, eq=False)
class Request:
    """A request. `prompt_len`, `launched` and `len(tokens) + pending` describe its progress."""

    id: int
    tokens: list[int]  # the prompt, then the committed tokens
    prompt_len: int
    params: SamplingParams  # replaced as a whole when a parameter changes
    seed: int
    max_len: int  # maximum tokens, prompt included
    arrived: float = 0.0
    priority: int = 0  # lower runs first
    deadline: float | None = None  # when its first token is due, on the engine's clock
    salt: bytes = b""  # separates prefix caches of different owners
    adapter: Adapter = NO_ADAPTER
    chat: str | None = ""  # its blocks on disk are deleted with this chat; None: none are stored there
    group: int = -1  # the caller's request, if this is one of several rows that answer it
    guided_from: int = 0  # index of the first token a grammar applies to, if after the prompt
    guided: bool = field(init=False)  # whether its parameters constrain its next token
    guide: GrammarState | None = None  # created on first use, and again from the tokens if lost
    awaits: bool = False  # its next token depends on a decision on the host

    launched: int = 0  # tokens whose KV is written or being written; the next step starts here
    stamp: int = -1  # changes when the parameters or the slot change
    pending: int = 0  # sampled on the device, not yet committed
    mirrored: int = 0  # how many of its tokens the runner has for a draft model
    slot: int = -1  # its row in the runner's columns while it runs, else -1
    blocks: list[int] = field(default_factory=list)
    gone: int = 0  # how many of its blocks have left a window, or were evicted
    trimmed: int = 0  # it holds no blocks that had left their window for a token at this position
    skipped: int = 0  # tokens of the evicted blocks, which its row of the block tables does not list
    evidence: Evidence = field(default_factory=Evidence)  # with a budget
    shares_tail: bool = False  # its last block may be shared with another request
    stored: Stored | None = None  # its blocks below the device, while it does not run
    chain: list[bytes] = field(default_factory=list)  # the prefix key of each full block, as far as computed
    epoch: int = -1  # of the weights that computed its whole cache
    published: int = 0  # how many of its blocks are in the prefix cache
    cached_tokens: int = 0  # prompt tokens found in the prefix cache, or loaded from a tier
    offer: TierOffer | None = None  # of a tier, when it was admitted
    since: float = 0.0  # while its blocks load: when that began
    waited: float = 0.0  # seconds for blocks that did not arrive in time; it loads none after that
    saved: float = 0.0  # at least so many seconds, by loading blocks
    drafts: Callable[[], Speculation] | None = None  # tells what they have brought; None: it never drafted
    scored: int = field(init=False)  # prompt positions before the first one still to be read, plus 1

    phase: Phase = Phase.WAITING
    why: str = ""  # why it waits, as shown on the screen
    finish: Finish | None = None
    error: str = ""
    preemptions: int = 0
    first_token_at: float | None = None
    last_token_at: float = 0.0

    def __post_init__(self) -> None:
        self.guided = bool(self.params.guided)
        all_read = self.params.prompt_logprobs is not None or self.params.pooling == "mean"
        self.scored = 1 if all_read else self.prompt_len

    @property
    def known(self) -> int:
        """Tokens that have been sampled, committed or not."""
        return len(self.tokens) + self.pending

    @property
    def generated(self) -> int:
        """The committed tokens of the reply."""
        return len(self.tokens) - self.prompt_len
