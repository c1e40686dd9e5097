"""Scheduling policies. A policy ranks requests."""

import math
from bisect import bisect_left, bisect_right
from importlib.metadata import entry_points
from typing import ClassVar, Protocol, TypeVar

from engine.api.errors import BadInput
from engine.api.plugins import missing_members
from engine.api.request import Request
from engine.scheduling.queue import Rank


class Policy(Protocol):
    name: ClassVar[str]

    def rank(self, request: Request) -> Rank:
        """Lower ranks run first and are preempted last. Must not change after the request arrives."""


GROUP = "minichat.policies"  # entry points of packages that provide a policy

_P = TypeVar("_P", bound=type[Policy])
POLICIES: dict[str, type[Policy]] = {}


def register(cls: _P) -> _P:
    POLICIES[cls.name] = cls
    return cls


def choose(name: str, target: float | None = None) -> Policy:
    """The policy with this name, built in or from an installed package. `target`: of the policy latency."""
    if name not in POLICIES:
        POLICIES[name] = _from_outside(name)
    policy = POLICIES[name]()
    if isinstance(policy, LatencyPolicy) and target is not None:
        policy.set_target(target, -math.inf)
    return policy


def names() -> list[str]:
    """The names of all policies, including those of installed packages."""
    return sorted({*POLICIES, *(point.name for point in entry_points(group=GROUP))})


def why_not(name: str) -> str | None:
    """Why the policy cannot be used; None if it can."""
    try:
        choose(name)
    except BadInput as error:
        return str(error)
    return None


def _from_outside(name: str) -> type[Policy]:
    outside = {point.name: point for point in entry_points(group=GROUP)}  # takes milliseconds
    if name not in outside:
        able = [each for each in names() if why_not(each) is None]
        raise BadInput(f"policy {name!r} is unknown; available: {', '.join(able)}")
    try:
        found = outside[name].load()
    except (ImportError, AttributeError) as error:
        raise BadInput(f"policy {name!r} cannot be loaded: {error}") from error
    if problem := missing_members(found, "name", "rank"):
        raise BadInput(f"policy {name!r} is not usable: {problem}")
    return found


@register
class FcfsPolicy:
    """First come, first served. The rows of a search came with it, though their numbers are later."""

    name: ClassVar[str] = "fcfs"

    def rank(self, request: Request) -> Rank:
        return (request.arrived, request.id)


@register
class PriorityPolicy:
    """The lowest priority value first; among equals, first come, first served.

    Waiting ages, so nothing starves: a level counts as much as a minute of waiting. Since the arrival says
    how long a request has waited, its rank need not change.
    """

    name: ClassVar[str] = "priority"
    level: ClassVar[float] = 60.0  # seconds of waiting that are worth one level

    def rank(self, request: Request) -> Rank:
        return (request.arrived + self.level * request.priority, request.id)


@register
class LatencyPolicy:
    """The request whose first token is due soonest goes first."""

    name: ClassVar[str] = "latency"

    def __init__(self) -> None:
        # Seconds to the first token of requests without a deadline, and since when. A request keeps the
        # target it arrived under, because its rank must not change.
        self._since, self._targets = [-math.inf], [1.0]

    @property
    def target(self) -> float:
        """The target of requests that arrive now."""
        return self._targets[-1]

    def set_target(self, seconds: float, now: float) -> None:
        """Use another target for requests that arrive from now on."""
        at = bisect_left(self._since, now)
        self._since[at:], self._targets[at:] = [now], [seconds]

    def rank(self, request: Request) -> Rank:
        if request.deadline is not None:
            return (request.deadline, request.id)
        target = self._targets[bisect_right(self._since, request.arrived) - 1]
        return (request.arrived + target, request.id)


def latency_target(policy: Policy) -> float | None:
    """The target of the policy latency; None for other policies, which have none."""
    return policy.target if isinstance(policy, LatencyPolicy) else None


def set_latency_target(policy: Policy, seconds: float, now: float) -> None:
    """Set the target of the policy latency. Raises BadInput for other policies, which have none."""
    if not isinstance(policy, LatencyPolicy):
        raise BadInput(f"the policy {policy.name} has no target; start the engine with the policy latency")
    policy.set_target(seconds, now)
