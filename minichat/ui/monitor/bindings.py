"""The keys of the monitor, whichever pane has the focus. Settings remap keys by these ids."""

from textual.binding import Binding, BindingType

from minichat.ui.monitor.arrange import PANES

_NAMES = ("KV map", "queues", "rates", "latency", "events", "experts")
MAXIMIZE = (" ".join(f"monitor.pane_{pane}" for pane in PANES), "pane")  # on the bottom line


def up(action: str) -> Binding:
    """The binding for up, on the map and in lists."""
    return Binding("up", action, "Move up on the map or in a list", id="monitor.up", show=False)


def down(action: str) -> Binding:
    return Binding("down", action, "Move down on the map or in a list", id="monitor.down", show=False)


KEYS: list[BindingType] = [
    *(
        Binding(
            f"{pane}",
            f"maximize({pane})",
            f"Maximize {name}, or restore",
            id=f"monitor.pane_{pane}",
            show=False,
        )
        for pane, name in zip(PANES, _NAMES, strict=True)
    ),
    Binding("plus,equals_sign", "rate(1)", "Update more often", id="monitor.faster", show=False),
    Binding("minus", "rate(-1)", "Update less often", id="monitor.slower", show=False),
    Binding("p", "pause", "Pause or resume updates", id="monitor.pause", show=False),
    Binding("t", "window", "Change the graphs' time window", id="monitor.window", show=False),
    Binding("o", "order", "Order blocks by address or session", id="monitor.order", show=False),
    Binding("c", "tint", "Change what colors show", id="monitor.colour", show=False),
    Binding("r", "replica", "Show the next replica's map", id="monitor.replica", show=False),
    Binding("l", "letters", "Toggle letters on the map", id="monitor.letters", show=False),
    Binding("slash", "filter", "Filter the events", id="monitor.filter", show=False),
    Binding("x", "abort", "Abort the selected request", id="monitor.abort", show=False),
    Binding("P", "preempt", "Preempt the selected request", id="monitor.preempt", show=False),
    Binding("escape", "leave", show=False),
]
