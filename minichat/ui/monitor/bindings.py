"""The keys of the monitor, wherever in it the focus is. The ids are what the settings remap."""

from textual.binding import Binding, BindingType

from minichat.ui.monitor.arrange import PANES

_NAMES = ("KV map", "queues", "rates", "latency", "events")


def up(action: str) -> Binding:
    """On the map and in the lists alike."""
    return Binding("up", action, "Upwards, on the map or in a list", id="monitor.up", show=False)


def down(action: str) -> Binding:
    return Binding("down", action, "Downwards, on the map or in a list", id="monitor.down", show=False)


KEYS: list[BindingType] = [
    *(
        Binding(
            f"{pane}", f"maximise({pane})", f"{name} alone, or all", id=f"monitor.pane_{pane}", show=False
        )
        for pane, name in zip(PANES, _NAMES, strict=True)
    ),
    Binding("plus,equals_sign", "rate(1)", "Update more often", id="monitor.faster", show=False),
    Binding("minus", "rate(-1)", "Update less often", id="monitor.slower", show=False),
    Binding("p", "pause", "Hold the picture, or go on", id="monitor.pause", show=False),
    Binding("t", "window", "The time window of the graphs", id="monitor.window", show=False),
    Binding("o", "order", "Order blocks by place or by session", id="monitor.order", show=False),
    Binding("c", "tint", "What the map's colour means", id="monitor.colour", show=False),
    Binding("l", "letters", "Letters on the map", id="monitor.letters", show=False),
    Binding("slash", "filter", "Filter the events", id="monitor.filter", show=False),
    Binding("x", "abort", "Abort the selected request", id="monitor.abort", show=False),
    Binding("P", "preempt", "Preempt the selected request", id="monitor.preempt", show=False),
    Binding("escape", "leave", show=False),
]
