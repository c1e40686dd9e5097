"""What was found on the first start, in a sentence."""

from engine.snapshot import Snapshot
from minichat.progress import size
from minichat.terminal import Terminal

_COLOURS = {"truecolor": "16 million colours", "256": "256 colours", "standard": "16 colours"}


def found_here(snapshot: Snapshot, terminal: Terminal, colours: str | None) -> str:
    """The device and its memory, what the terminal can do, and what the engine made of it."""
    gpu = snapshot.device != "cpu"
    free = snapshot.memory.get("device_free", 0)
    parts = [
        f"GPU {snapshot.device}" if gpu else "a CPU and no GPU",
        f"{size(free)} of memory free" if free else "",
        _COLOURS.get(colours or "", "no colours"),
        f"clipboard through {'tmux' if terminal.tmux else 'screen' if terminal.screen else 'the terminal'}",
    ]
    room = len(snapshot.blocks.refs) * snapshot.block_size
    return f"Found {', '.join(filter(None, parts))}. {snapshot.model} runs, with room for {room:,} tokens."
