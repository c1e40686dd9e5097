"""What was found on the first start, in a sentence."""

from engine.api.snapshot import Snapshot
from minichat.models.progress import size
from minichat.shell.terminal import Terminal

_COLOURS = {"truecolor": "16 million colours", "256": "256 colours", "standard": "16 colours"}


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
