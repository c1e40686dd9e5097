"""Splits the running requests into micro-batches, so that every stage of a pipeline has one to work on."""

from collections.abc import Sequence

from engine.api.request import Request
from engine.scheduling.settings import SchedulerSettings


def microbatch(running: Sequence[Request], rules: SchedulerSettings) -> list[Request]:
    """Return the running requests that the next step may have: all, if there is only one stage.

    With several, a request whose token is in flight waits for it, and a step has at most its share of those
    that decode. So their tokens are known to the host when they are scheduled, and no request starves: if
    every other step in flight has its share, the rest fits into this one. Chunks of a prompt need not wait
    for each other, since each stage computes them in order.
    """
    if rules.stages == 1:
        return list(running)
    decoding = sum(each.known - each.launched <= 1 for each in running)
    share = -(-decoding // rules.stages) if rules.overlap else decoding
    chosen = []
    for request in running:
        if request.known - request.launched > 1:
            chosen.append(request)
        elif not request.pending and share:
            share -= request.known > request.launched  # others wait for their group
            chosen.append(request)
    return chosen
