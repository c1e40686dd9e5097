"""The keys of a focused transcript. Settings remap keys by these ids."""

from textual.binding import Binding, BindingType

from minichat.ui.panes.keybar import Hints

KEYS: list[BindingType] = [
    Binding("end", "follow", "Scroll to the end and follow", id="transcript.follow", show=False),
    Binding("ctrl+up,left_curly_bracket", "go(-1)", "Previous message", id="transcript.previous", show=False),
    Binding("ctrl+down,right_curly_bracket", "go(1)", "Next message", id="transcript.next", show=False),
    Binding("enter", "toggle_thought", "Show or hide reasoning", id="transcript.reasoning", show=False),
    Binding("r", "retry", "Retry a failed reply", id="transcript.retry", show=False),
    Binding("m", "menu", "Open the message menu", id="transcript.menu", show=False),
    Binding(
        "y",
        "copy",
        "Copy the selection, the chosen message or the last reply",
        id="transcript.copy",
        show=False,
    ),
    Binding("n", "find_next(1)", "Next match", id="transcript.find_next", show=False),
    Binding("N", "find_next(-1)", "Previous match", id="transcript.find_previous", show=False),
    Binding("a", "select_message", "Select the message", id="transcript.select_message", show=False),
    Binding("ctrl+a", "select_everything", "Select all", id="transcript.select_all", show=False),
    Binding("shift+up", "select_lines(-1)", "Select up", id="transcript.select_up", show=False),
    Binding("shift+down", "select_lines(1)", "Select down", id="transcript.select_down", show=False),
    Binding(
        "shift+pageup", "select_page(-1)", "Select a page up", id="transcript.select_page_up", show=False
    ),
    Binding(
        "shift+pagedown", "select_page(1)", "Select a page down", id="transcript.select_page_down", show=False
    ),
    Binding("shift+left", "select_characters(-1)", "Select left", id="transcript.select_left", show=False),
    Binding("shift+right", "select_characters(1)", "Select right", id="transcript.select_right", show=False),
    Binding("shift+home", "select_edge(-1)", "Select to line start", id="transcript.select_home", show=False),
    Binding("shift+end", "select_edge(1)", "Select to line end", id="transcript.select_end", show=False),
]

_MENU = ("transcript.menu", "menu")
_SELECT = (
    ("transcript.select_left transcript.select_right transcript.select_up transcript.select_down", "select"),
    ("transcript.copy", "copy"),
)
HINTS: Hints = (_MENU, ("transcript.next", "message"), *_SELECT)
FINDING: Hints = (("transcript.find_next transcript.find_previous", "match"), _MENU, *_SELECT)  # in a search
