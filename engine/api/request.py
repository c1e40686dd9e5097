"""One request: its tokens, where it is, and why."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

import numpy as np

from engine.api.params import SamplingParams


class Phase(Enum):
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    PREEMPTED = "preempted"  # its blocks were taken; it will be computed again
    SWAPPED = "swapped"  # its blocks lie in a tier below the device, or are on their way from there
    DONE = "done"


class Finish(Enum):
    STOP = "stop"  # an end token or a stop string
    LENGTH = "length"
    ABORTED = "aborted"
    FAILED = "failed"


class GrammarState(Protocol):
    """Follows a reply through the grammar of its parameters."""

    error: str  # why nothing can come any more, if so
    fault: str  # which parameter is to blame then

    @property
    def over(self) -> bool:
        """Whether the text is whole, and nothing could follow it."""

    def read(self, tokens: Sequence[int]) -> None:
        """Catches up with all tokens of the request."""

    def allowed(self, enders: Iterable[int], *, early: bool) -> np.ndarray:
        """What may come next, a bit for each token."""


class Stored(NamedTuple):
    """Blocks of a request that gave way."""

    tier: str
    names: tuple[bytes, ...]
    transfer: int = -1  # by which they go there; it may be over


@dataclass(slots=True, eq=False)
class Request:
    """Three numbers tell where it is: `prompt_len`, `launched` and `len(tokens) + pending`."""

    id: int
    tokens: list[int]  # the prompt, then what is committed
    prompt_len: int
    params: SamplingParams  # replaced whole when a person turns a knob
    seed: int
    max_len: int  # tokens it may hold in all
    arrived: float = 0.0
    priority: int = 0  # smaller runs first
    deadline: float | None = None  # when its first token is due, on the engine's clock
    salt: bytes = b""  # separates prefix caches of different owners
    group: int = -1  # the request that a person knows, where this is one of several that answer it
    guided_from: int = 0  # the token from which on a grammar holds, where that is behind the prompt
    guide: GrammarState | None = (
        None  # made when the first token is drawn by it; made anew from the tokens if lost
    )
    awaits: bool = False  # its next token cannot be computed before the last one is known here

    launched: int = 0  # tokens whose KV is written or being written: the next plan starts here
    stamp: int = -1  # changes whenever it may be sampled in another way or place
    pending: int = 0  # sampled on the device, not yet committed here
    mirrored: int = 0  # tokens that the runner has of it for a model that drafts
    slot: int = -1  # its row in the runner's columns while it runs
    blocks: list[int] = field(default_factory=list)
    gone: int = 0  # how many of its blocks have left the window
    shares_tail: bool = False  # its last block may be held by another request too
    stored: Stored | None = None  # its blocks below the device, while it does not run
    chain: list[bytes] = field(default_factory=list)  # the prefix key of each full block, as far as known
    epoch: int = -1  # of the weights that have written all of its cache
    published: int = 0  # how many of its blocks the prefix cache has been told of
    cached_tokens: int = 0  # how much of the prompt came from the prefix cache

    phase: Phase = Phase.WAITING
    why: str = ""  # why it waits, in words: the screen shows this line
    finish: Finish | None = None
    error: str = ""
    preemptions: int = 0
    first_token_at: float | None = None
    last_token_at: float = 0.0

    @property
    def known(self) -> int:
        """Tokens that have been sampled, committed or not."""
        return len(self.tokens) + self.pending

    @property
    def generated(self) -> int:
        """Tokens of the reply that are committed."""
        return len(self.tokens) - self.prompt_len
