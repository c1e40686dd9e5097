"""Who goes first. A policy ranks requests, and may hold the door a moment for a fuller batch."""

from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import ClassVar, Protocol, TypeVar

from engine.api.errors import BadInput
from engine.api.plugins import missing_members
from engine.api.request import Request
from engine.scheduling.costs import Costs
from engine.scheduling.queue import Rank


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a policy may look at before the head of the line is let in."""

    now: float
    head: Request
    waiting_tokens: int  # of the whole line
    running: int
    step_tokens: int  # the budget of a step
    costs: Costs


class Policy(Protocol):
    name: ClassVar[str]

    def rank(self, request: Request) -> Rank:
        """The smaller runs first and is preempted last. Fixed once the request has come."""

    def hold(self, outlook: Outlook) -> float:
        """Seconds for which nobody should be let in; 0 lets the head in now."""


GROUP = "minichat.policies"  # entry points of packages that bring a policy of their own

_P = TypeVar("_P", bound=type[Policy])
POLICIES: dict[str, type[Policy]] = {}


def register(cls: _P) -> _P:
    POLICIES[cls.name] = cls
    return cls


def choose(name: str) -> Policy:
    """The policy of that name, from here or from an installed package."""
    if name not in POLICIES:
        POLICIES[name] = _from_outside(name)
    return POLICIES[name]()


def names() -> list[str]:
    """All that can be asked for, those of installed packages too."""
    return sorted({*POLICIES, *(point.name for point in entry_points(group=GROUP))})


def _from_outside(name: str) -> type[Policy]:
    outside = {point.name: point for point in entry_points(group=GROUP)}  # takes milliseconds
    if name not in outside:
        raise BadInput(f"there is no scheduling policy {name!r}; there are {', '.join(names())}")
    try:
        found = outside[name].load()
    except (ImportError, AttributeError) as error:
        raise BadInput(f"scheduling policy {name!r} cannot be loaded: {error}") from error
    if problem := missing_members(found, "name", "rank", "hold"):
        raise BadInput(f"scheduling policy {name!r} cannot be taken: {problem}")
    return found


@register
class FcfsPolicy:
    """First come, first served."""

    name: ClassVar[str] = "fcfs"

    def rank(self, request: Request) -> Rank:
        return (request.id,)

    def hold(self, outlook: Outlook) -> float:
        return 0.0


@register
class PriorityPolicy:
    """The smaller priority first; among equals, first come, first served."""

    name: ClassVar[str] = "priority"

    def rank(self, request: Request) -> Rank:
        return (request.priority, request.id)

    def hold(self, outlook: Outlook) -> float:
        return 0.0


@register
class LatencyPolicy:
    """The first token that is due soonest goes first.

    While there is time to spare and the step would be far from full, it holds the door: one fuller
    prefill stalls the running replies once, where several small ones stall them each time.
    """

    name: ClassVar[str] = "latency"
    default_target: ClassVar[float] = 1.0  # seconds to the first token, where a request names no deadline
    patience: ClassVar[float] = 0.05  # the longest a request is held

    def rank(self, request: Request) -> Rank:
        return (self._due(request), request.id)

    def hold(self, outlook: Outlook) -> float:
        if not outlook.running or outlook.waiting_tokens >= outlook.step_tokens:
            return 0.0  # nobody would be stalled, or the step is full as it is
        costs = outlook.costs
        work = costs.recompute(outlook.waiting_tokens) + (costs.step or 0.0)
        spare = self._due(outlook.head) - outlook.now - 2 * work
        held = outlook.now - outlook.head.arrived
        return max(0.0, min(spare, self.patience - held))

    def _due(self, request: Request) -> float:
        return request.deadline if request.deadline is not None else request.arrived + self.default_target
