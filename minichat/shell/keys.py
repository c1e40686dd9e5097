"""Key bindings with the user's changes, and how keys are displayed."""

import re
from collections.abc import Iterable, Iterator, Mapping

from textual.binding import Binding
from textual.widget import Widget

from minichat.settings.keymap import Bound, typed_by, types

_NAMES = {"escape": "Esc", "enter": "Enter", "pagedown": "PgDn", "pageup": "PgUp", "ctrl": "^"}
_RUNS = (  # of key names, abbreviated
    ("Shift+Left Shift+Right Shift+Up Shift+Down", "Shift+arrows"),
    ("Left Right Up Down", "Arrows"),
    ("Alt+1 Alt+2 Alt+3 Alt+4 Alt+5 Alt+6 Alt+7 Alt+8 Alt+9", "Alt+1 ... Alt+9"),
    ("1 2 3 4 5 6", "1-6"),
)


IDS = re.compile(r"\{([\w. ]+)\}")  # binding ids in a text


class Keys:
    """The keys of commands and widget bindings, by id."""

    def __init__(self, bound: Iterable[Bound], keymap: Mapping[str, str]) -> None:
        every = tuple(bound)
        self._usual = {each.id: ",".join(each.keys) for each in every}
        self._everywhere = {each.id for each in every if not each.place}
        self.keymap = keymap  # the user's changes

    def __contains__(self, id: str) -> bool:
        return id in self._usual

    def of(self, id: str) -> list[str]:
        return [key for key in self.keymap.get(id, self._usual[id]).split(",") if key]

    def name(self, id: str) -> str:
        """The display name of the first key; of a command, of the first one that also works in the prompt."""
        keys = self.of(id)
        if id in self._everywhere:
            keys.sort(key=types)
        return key_name(",".join(keys))

    def names(self, ids: Iterable[str]) -> str:
        """The display names of the first key of each id, with runs abbreviated."""
        names = " ".join(map(self.name, ids))
        for long, short in _RUNS:
            names = names.replace(long, short)
        return names

    def named(self, text: str) -> str:
        """The text with its binding ids replaced by their keys: "{view.help} lists the keys"."""
        return IDS.sub(lambda found: self.names(found[1].split()), text)


def key_name(keys: str) -> str:
    """The display name of the first of the keys: ^P, Alt+W, F1, /."""
    key = keys.split(",")[0]
    return key if len(key) == 1 else "+".join(map(_word, key.split("+"))).replace("^+", "^")


def as_set(named: str) -> str:
    """The displayed names as the settings write them: pageup for PgUp, ctrl+x for ^X."""
    for written, shown in _NAMES.items():
        named = named.replace(shown, "ctrl+" if written == "ctrl" else written)
    return named


def _word(part: str) -> str:
    """The name of a key or of a modifier. A sign is shown as it is, not by its name in Unicode."""
    sign = typed_by(part)
    return _NAMES.get(part) or (sign.upper() if sign.isprintable() and sign.strip() else part.title())


def bound_by(place: str, widget: type[Widget]) -> Iterator[Bound]:
    """The bindings of a widget that the settings may remap."""
    for binding in widget.BINDINGS:
        if isinstance(binding, Binding) and binding.id:
            yield Bound(binding.id, tuple(binding.key.split(",")), place, binding.description)
