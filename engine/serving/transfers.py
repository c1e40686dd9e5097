"""Passes the scheduler's transfer orders to the runner and reports the ends, between steps."""

import math

from engine.api import events
from engine.execution.protocol import Runner
from engine.kv.tiers.moving import Moving
from engine.scheduling.recovery import compute_late, take_end
from engine.scheduling.scheduler import Scheduler

NO_REQUEST = -1  # of events about cached blocks
POLL = 0.001  # seconds between polls when the engine is otherwise idle, at most


def send_orders(scheduler: Scheduler, runner: Runner) -> None:
    """Send the orders before their step is launched, because it may overwrite blocks being stored."""
    orders, in_flight = scheduler.transfers.orders, scheduler.transfers.in_flight
    for order in orders:
        began = scheduler.clock()
        runner.transfer(order)
        if moving := in_flight.get(order.id):
            moving.ordering = scheduler.clock() - began
            if scheduler.running:
                scheduler.sinking.ordered(moving)
    orders.clear()


def pause(scheduler: Scheduler) -> float:
    """Seconds until the next poll: a fraction of the time a load has taken, so that polling adds little."""
    began = max((request.since for request in scheduler.transfers.incoming), default=-math.inf)
    return min(POLL, max(POLL / 10, (scheduler.clock() - began) / 16))


def take_ends(scheduler: Scheduler, runner: Runner, *, wait: bool = False) -> None:
    """Handle the transfers that have ended, and loads that take too long. `wait`: wait for all of them."""
    for end in runner.transferred(wait=wait):
        moving = take_end(scheduler, end)
        if not end.error:
            scheduler.sinking.ended(moving, end.seconds)
        _report(scheduler, moving, max(end.seconds, moving.ordering), end.error)
        if moving.request is not None and not scheduler.requests:
            # When the last request ended, this transfer held its blocks.
            scheduler.sinking.copy_ahead(scheduler.step, scheduler.rules.step_tokens, idle=True)
    for moving in compute_late(scheduler):
        assert moving.request is not None
        _report(scheduler, moving, moving.request.waited, "slower than computing them again")


def follow(scheduler: Scheduler, runner: Runner) -> bool:
    """Start requests whose last blocks are being copied, if the runner's next steps wait for these.

    So a step is launched while its blocks arrive. Only if nothing runs, because all steps would wait.
    """
    waiting = () if scheduler.running else tuple(scheduler.transfers.loading.values())
    near = [moving.request for moving in waiting if moving.request and runner.follow(moving.order.id)]
    for request in near:
        scheduler.transfers.leave(request)
        scheduler.transfers.loaded.append(request)
        scheduler.report_start(request, swapped=True)
    return bool(near)


def _report(scheduler: Scheduler, moving: Moving, seconds: float, error: str) -> None:
    order, request = moving.order, moving.request.id if moving.request else NO_REQUEST
    scheduler.emit(
        events.Transferred(
            scheduler.step, scheduler.clock(), request, order.tier, order.kind == "load", len(order.names),
            seconds, error,
        )
    )  # fmt: skip


class TierProblems:
    """Reports when a tier begins to fail and when it has recovered."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._reported: dict[str, str] = {}

    def report(self) -> None:
        scheduler = self._scheduler
        for name, tier in scheduler.transfers.tiers.items():
            if (problem := tier.problem) != self._reported.get(name, ""):
                self._reported[name] = problem
                scheduler.emit(events.TierProblem(scheduler.step, scheduler.clock(), name, problem))


def finish(scheduler: Scheduler, runner: Runner) -> None:
    """Wait until no transfer is pending."""
    while scheduler.transfers.pending:
        send_orders(scheduler, runner)
        take_ends(scheduler, runner, wait=True)
