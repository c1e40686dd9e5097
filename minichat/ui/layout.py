"""How the columns are divided among the chats, the drawer and the side panel."""

from dataclasses import dataclass

BESIDE = 120  # columns from which a side panel is beside the chats
SEVERAL = 180  # columns from which chats are side by side
SHORT = 20  # rows; a screen with fewer has no key bar and a prompt without a border
LOW = 30  # rows; below that, a long draft leaves its lines to a drawer or the monitor
MOST_PANES = 4
ROOM = "close the drawer or the monitor to make room"  # for several chats, where the columns suffice
_PANE = 57  # columns for each of them: two fit from SEVERAL on
_CHAT = 60  # columns left for a chat between a drawer and the side panel
_DRAWER = 40
_SIDE, _WIDE_SIDE = 50, 66


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a screen."""

    chats: bool  # whether any is visible
    panes: int  # number of chats side by side
    side: bool
    side_columns: int  # 0: all that are left
    drawer_columns: int


def layout(
    width: int, *, side: bool | None, drawer: bool, side_by_side: bool, filled: bool = False
) -> Layout:
    """`side`: the user's choice; None shows it if it fits. `filled`: it takes the whole width."""
    if filled:
        return Layout(chats=False, panes=1, side=True, side_columns=0, drawer_columns=0)
    beside = width >= BESIDE
    columns = (_WIDE_SIDE if width >= SEVERAL else _SIDE) if beside else 0
    both = beside and width - columns - _DRAWER >= _CHAT
    shown = (beside if side is None else side) and (both or not drawer)
    narrow = width < 2 * _DRAWER - 4
    left = width - (columns if shown else 0) - (_DRAWER if drawer else 0)
    several = side_by_side and width >= SEVERAL
    return Layout(
        chats=beside or not (shown or (drawer and narrow)),
        panes=min(max(left // _PANE, 1), MOST_PANES) if several else 1,
        side=shown,
        side_columns=columns,
        drawer_columns=0 if narrow else _DRAWER,
    )
