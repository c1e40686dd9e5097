"""Who gets which columns: the chats, the decoding drawer, the monitor."""

from dataclasses import dataclass

BESIDE = 120  # columns from which the monitor stands beside the chats
SEVERAL = 180  # columns from which chats stand side by side
MOST_PANES = 4
_PANE = 57  # columns that each needs there: two fit from the first that may have several
_CHAT = 60  # columns that a chat keeps between a drawer and the monitor
_DRAWER = 40
_MONITOR, _WIDE_MONITOR = 50, 66


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a screen."""

    chats: bool  # whether there is room for any
    panes: int  # how many side by side
    monitor: bool
    monitor_columns: int  # 0: all that is left
    drawer_columns: int


def layout(
    width: int, *, monitor: bool | None, drawer: bool, side_by_side: bool, filled: bool = False
) -> Layout:
    """`monitor` is what the person said; None leaves it to the room there is. `filled`: it takes all."""
    if filled:
        return Layout(chats=False, panes=1, monitor=True, monitor_columns=0, drawer_columns=0)
    beside = width >= BESIDE
    columns = (_WIDE_MONITOR if width >= SEVERAL else _MONITOR) if beside else 0
    both = beside and width - columns - _DRAWER >= _CHAT
    shown = (beside if monitor is None else monitor) and (both or not drawer)
    narrow = width < 2 * _DRAWER - 4
    left = width - (columns if shown else 0) - (_DRAWER if drawer else 0)
    several = side_by_side and width >= SEVERAL
    return Layout(
        chats=beside or not (shown or (drawer and narrow)),
        panes=min(max(left // _PANE, 1), MOST_PANES) if several else 1,
        monitor=shown,
        monitor_columns=columns,
        drawer_columns=0 if narrow else _DRAWER,
    )
