"""Work in the background of the event loop."""

from collections.abc import Callable, Coroutine
from typing import Any

from textual.dom import DOMNode
from textual.worker import WorkType


def begin(
    node: DOMNode,
    work: Callable[[], Coroutine[Any, Any, None]],
    *,
    group: str = "default",
    exclusive: bool = False,
) -> None:
    """Start work that ends with the node.

    It is a function: a coroutine that is never started, because the program ends first, would leave a
    warning on the terminal.
    """
    given: WorkType[None] = work
    node.run_worker(given, group=group, exclusive=exclusive)
