"""Answers of a fleet, as futures."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from engine.api.errors import EngineDead, EngineError
from engine.api.events import log


def answered(act: Callable[[], object]) -> Future[Any]:
    """Call `act` now, for its result or its refusal."""
    answer = Future[Any]()
    try:
        answer.set_result(act())
    except EngineError as error:
        answer.set_exception(error)
    return answer


def refusal(error: EngineError) -> Future[Any]:
    answer = Future[Any]()
    answer.set_exception(error)
    return answer


def has_ended(answer: Future[Any]) -> bool:
    """Whether an engine that has ended gave this answer, and gave it at once."""
    return answer.done() and isinstance(answer.exception(), EngineDead)


def log_difference(done: Future[Any]) -> None:
    """Log the refusal of a setting by a replica that has started again."""
    if (error := done.exception()) is not None:
        log.warning("a replica that has started again differs from the others: %s", error)


def all_done(parts: Sequence[Future[Any]]) -> Future[Any]:
    """A future of the first part's result once all parts are done, or of the first error."""
    whole, left, gate = Future[Any](), [len(parts)], threading.Lock()

    def done(_: Future[Any]) -> None:
        with gate:
            left[0] -= 1
            if left[0]:
                return
        errors = [error for each in parts if (error := each.exception()) is not None]
        if errors:
            whole.set_exception(errors[0])
        else:
            whole.set_result(parts[0].result())

    for each in parts:
        each.add_done_callback(done)
    if not parts:  # no request to abort
        whole.set_result(None)
    return whole
