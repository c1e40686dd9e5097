"""What a newcomer reads: what was found here, and three things to try with the model at hand."""

from engine.api.snapshot import Snapshot
from engine.models.find import BUILT_IN
from minichat.models.progress import size
from minichat.shell.terminal import Terminal

# Answered well, and each shows something else: a story, the engine, an order.
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
_WITHOUT_TEMPLATE = (  # it goes on with a text
    "Once upon a time there was a brave mouse who",
    "The largest planets of the solar system are",
    "def merge(one: list[int], other: list[int]) -> list[int]:",
)
_COLOURS = {"truecolor": "16 million colours", "256": "256 colours", "standard": "16 colours"}


def things_to_try(model: str, *, template: bool) -> tuple[str, ...]:
    """First messages that this model can answer."""
    if model == BUILT_IN:
        return _BUILT_IN
    return _LARGER if template else _WITHOUT_TEMPLATE


def found_here(snapshot: Snapshot, terminal: Terminal, colours: str | None) -> str:
    """The device and its memory, what the terminal can do, and what the engine made of it."""
    free = snapshot.memory.get("device_free", 0)
    parts = [
        {"cpu": "a CPU and no GPU", "none": "an engine that makes its replies up"}.get(
            snapshot.device, f"GPU {snapshot.device}"
        ),
        f"{size(free)} of memory free" if free else "",
        _COLOURS.get(colours or "", "no colours"),
        f"clipboard through {'tmux' if terminal.tmux else 'screen' if terminal.screen else 'the terminal'}",
    ]
    room = len(snapshot.blocks.refs) * snapshot.block_size
    return f"Found {', '.join(filter(None, parts))}. {snapshot.model} runs, with room for {room:,} tokens."
