"""Takes the scheduler's orders to the runner, and brings back what is over, between two steps."""

from engine.api import events
from engine.scheduling.recovery import take_end
from engine.serving.machine import Machine

POLL = 0.001  # seconds between two looks, where there is nothing else to do


def send_orders(engine: Machine) -> None:
    """Before the step that was decided with them is launched: it may write to blocks that leave."""
    orders = engine.scheduler.transfers.orders
    for order in orders:
        engine.runner.transfer(order)
    orders.clear()


def take_ends(engine: Machine, *, wait: bool = False) -> None:
    """Transfers that are over. `wait`: all of them, once they are."""
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
    """Nothing moves beside what comes next."""
    while engine.scheduler.transfers.pending:
        send_orders(engine)
        take_ends(engine, wait=True)
