"""The greeting: what was found on this machine, and three messages to try with the current model."""

from engine.api.snapshot import Snapshot
from engine.models.find import BUILT_IN
from minichat.models.progress import size
from minichat.shell.terminal import Terminal

# The model answers these well, and each shows another ability: a story, the engine, an instruction.
_BUILT_IN = (
    "Tell me a story about a brave mouse.",
    "What is paged attention?",
    "Turn into JSON: Anna is 30 and lives in Rome.",
)
_LARGER = (
    "Explain paged attention in three sentences.",
    "Write a Python function that merges two sorted lists, and a test for it.",
    "Compare a heap and a binary search tree in a table.",
)
_WITHOUT_TEMPLATE = (  # to be continued
    "Once upon a time there was a brave mouse who",
    "The largest planets of the solar system are",
    "def merge(one: list[int], other: list[int]) -> list[int]:",
)
_COLORS = {"truecolor": "16 million colors", "256": "256 colors", "standard": "16 colors"}


def things_to_try(model: str, *, template: bool) -> tuple[str, ...]:
    """First messages that this model can answer."""
    if model == BUILT_IN:
        return _BUILT_IN
    return _LARGER if template else _WITHOUT_TEMPLATE


def is_dry(snapshot: Snapshot) -> bool:
    """Whether the engine has no weights and no device: its replies are invented."""
    return snapshot.device == "none"


def found_here(snapshot: Snapshot, terminal: Terminal, colors: str | None) -> str:
    """A sentence on the device and its memory, the terminal, and the size of the cache."""
    memory = snapshot.memory.get("device_total", 0)  # of what is free, the cache has taken most
    parts = [
        _device(snapshot),
        f"{size(memory)} of memory" if memory else "",
        _COLORS.get(colors or "", "no colors"),
        f"clipboard {_clipboard(terminal)}",
    ]
    room = snapshot.tokens_in(snapshot.usable_blocks)
    model = f"{snapshot.model} is running" + (
        f" in {count} replicas" if (count := len(snapshot.replicas)) else ""
    )
    return f"Found {', '.join(filter(None, parts))}. {model}, with room for {room:,} tokens."


def _clipboard(terminal: Terminal) -> str:
    if terminal.console:
        return "in a file"
    return f"through {'tmux' if terminal.tmux else 'screen' if terminal.screen else 'the terminal'}"


def _device(snapshot: Snapshot) -> str:
    if snapshot.on_cpu:
        return "a CPU"  # there may be a GPU that the engine was told not to use
    return "a dry-run engine" if is_dry(snapshot) else f"GPU {snapshot.device}"
