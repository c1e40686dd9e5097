"""The quantization drawer: how weights and cache are kept, and what room that leaves. Of the whole engine."""

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget
from textual.widgets import Static

from engine.events import Event
from engine.snapshot import Snapshot
from minichat.progress import size
from minichat.widgets.marks import UNICODE, Marks

_LABEL, _FIGURE = 13, 9  # cells
_PURPOSES = {
    "weights": "weights",
    "cache": "KV cache",
    "host_cache": "on the host",
    "workspace": "for steps",
    "device_free": "free",
}

Row = tuple[str, str, float | None]  # a label, its figure, and a share of the whole to draw


class Facts(Widget):
    """Labels with figures, and bars where there is a whole to compare with."""

    rows: reactive[tuple[Row, ...]] = reactive((), layout=True)
    marks: Marks = UNICODE

    def render(self) -> Content:
        return Content("\n").join(self._line(*row) for row in self.rows)

    def _line(self, label: str, figure: str, share: float | None) -> Content:
        line = [(f"{label:{_LABEL}}", "$text-muted"), (figure, "$text")]
        if share is not None:
            room = max(self.size.width - _LABEL - _FIGURE - 2, 0)
            full = min(round(share * room), room) or int(share > 0 and room > 0)
            line[1] = (f"{figure:>{_FIGURE}}  ", "$text")
            line += [(self.marks.bar * full, "$primary"), (self.marks.rest * (room - full), "$text-muted")]
        return Content.assemble(*line)


class QuantizationDrawer(VerticalScroll, can_focus=True):
    """Beside the chats, in the place of the decoding drawer. It looks at snapshots while it is open."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", show=False)]

    class Left(Message):
        """Back to the prompt."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.scheme, self.memory, self.room = Facts(), Facts(), Facts()

    def compose(self) -> ComposeResult:
        yield Static("scheme", classes="section")
        yield self.scheme
        yield Static("memory", classes="section")
        yield self.memory
        yield Static("room", classes="section")
        yield self.room

    def obey(self, marks: Marks) -> None:
        for each in (self.scheme, self.memory, self.room):
            each.marks = marks

    def see_snapshot(self, snapshot: Snapshot) -> None:
        self.scheme.rows = scheme(snapshot)
        self.memory.rows = memory(snapshot.memory)
        self.room.rows = room(snapshot)

    def see_events(self, events: Sequence[Event]) -> None:
        """What they change is in the next snapshot."""

    def action_leave(self) -> None:
        self.post_message(self.Left())


def scheme(shot: Snapshot) -> tuple[Row, ...]:
    plain = shot.quantization == "none"
    weights = f"{shot.dtype}, not quantized" if plain else f"{shot.quantization}, computed in {shot.dtype}"
    return (
        ("model", shot.model, None),
        ("weights", weights, None),
        ("KV cache", shot.kv_dtype or "unknown", None),
        ("runs on", shot.device, None),
    )


def memory(found: dict[str, int]) -> tuple[Row, ...]:
    """By purpose; shares are of the device, where what is on the host is no part of it."""
    total = found.get("device_total", 0)
    rows = [
        (name, size(found[key]), found[key] / total if total and key != "host_cache" else None)
        for key, name in _PURPOSES.items()
        if found.get(key)
    ]
    return (*rows, ("in all", size(total), None)) if total else tuple(rows)


def room(shot: Snapshot) -> tuple[Row, ...]:
    """Blocks, and the tokens that they are for."""
    blocks, count = shot.blocks, len(shot.blocks.refs)
    free = count - blocks.in_use - blocks.cached
    rows: list[Row] = [
        ("blocks", f"{count:,} of {shot.block_size} tokens", None),
        ("in use", f"{blocks.in_use:,}", blocks.in_use / count),
        ("cached", f"{blocks.cached:,}", blocks.cached / count),
        ("free", f"{free:,}", free / count),
        ("tokens", f"{count * shot.block_size:,} in all", None),
        ("left", f"{(count - blocks.in_use) * shot.block_size:,} for new ones", None),
        ("a request", f"{shot.max_context:,} at most", None),
    ]
    if shot.host_size:
        rows.append(("swapped", f"{shot.host_in_use:,} of {shot.host_size:,} blocks", None))
    return tuple(rows)
