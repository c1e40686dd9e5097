"""Passes the scheduler's transfer orders to the runner and reports the ends, between steps."""

from engine.api import events
from engine.scheduling.recovery import take_end
from engine.serving.machine import Machine

POLL = 0.001  # seconds between polls when the engine is otherwise idle


def send_orders(engine: Machine) -> None:
    """Send the orders before their step is launched, because it may overwrite blocks being stored."""
    orders = engine.scheduler.transfers.orders
    for order in orders:
        engine.runner.transfer(order)
    orders.clear()


def take_ends(engine: Machine, *, wait: bool = False) -> None:
    """Handle the transfers that have ended. `wait`: wait for all of them."""
    scheduler = engine.scheduler
    for end in engine.runner.transferred(wait=wait):
        moving = take_end(scheduler, end)
        order, request = moving.order, moving.request.id
        engine.bus.emit(
            events.Transferred(
                scheduler.step, engine.clock(), request, order.tier, order.kind == "load", len(order.names),
                end.seconds, end.error,
            )
        )  # fmt: skip


def finish(engine: Machine) -> None:
    """Wait until no transfer is pending."""
    while engine.scheduler.transfers.pending:
        send_orders(engine)
        take_ends(engine, wait=True)
