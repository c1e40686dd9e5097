"""Key bindings from the settings. Textual silently resolves conflicts; this module reports them."""

import string
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from textual.binding import Binding
from textual.keys import KEY_NAME_REPLACEMENTS, Keys, key_to_character

from minichat.settings.load import Loaded
from minichat.settings.nearest import unknown

MODIFIERS = ("ctrl", "alt", "shift", "super", "meta", "hyper")
SAME_TO_A_TERMINAL = {
    "ctrl+i": "tab",
    "ctrl+m": "enter",
    "ctrl+h": "backspace",
    "ctrl+left_square_bracket": "escape",
    "alt+b": "ctrl+left",
    "alt+f": "ctrl+right",
    "alt+backspace": "ctrl+w",
    "alt+tab": "shift+tab",
    **{f"ctrl+shift+{letter}": f"ctrl+{letter}" for letter in string.ascii_lowercase},
}
_FOCUS = ("tab", "shift+tab")  # taken before commands get them
_NAMED = {key.value.rpartition("+")[2] for key in Keys} | {*KEY_NAME_REPLACEMENTS.values()}


@dataclass(frozen=True, slots=True)
class Bound:
    """A default binding. Different places may use the same key."""

    id: str
    keys: tuple[str, ...]
    place: str = ""  # empty: everywhere
    title: str = ""
    priority: bool = False  # it also works while a text is typed


def keymap(loaded: Loaded, bindings: Iterable[Bound]) -> dict[str, str]:
    """Return a keymap for `set_keymap` of Textual. Report invalid entries and keep their default keys."""
    known = {bound.id: bound for bound in bindings}
    chosen: dict[str, tuple[str, ...]] = {}
    for name, keys in loaded.settings.keys.items():
        if name not in known:
            loaded.document.report(f"keys.{name}", unknown(name, known))
            continue
        normal = tuple(map(normalized, keys))
        faults = [
            fault
            for key, given in zip(normal, keys, strict=True)
            if (fault := _fault(key, given, known[name]))
        ]
        if not faults and not known[name].place and all(map(types, normal)):
            listed = ", ".join(f'"{key}"' for key in keys)
            faults.append(f"{listed} would be typed into the prompt; add a key like ctrl+n or f5")
        for fault in faults:
            loaded.document.report(f"keys.{name}", fault)
        if not faults:
            chosen[name] = normal
    while clashes := _clashes(known, chosen):  # restoring a default key may cause another conflict
        for name, says in clashes.items():
            loaded.document.report(f"keys.{name}", says)
            del chosen[name]
    return {name: ",".join(keys) for name, keys in chosen.items()}


def normalized(key: str) -> str:
    """The key in Textual's notation: `Ctrl+N` is ctrl+n, `?` is question_mark, shift+a is A."""
    head, plus, last = key.strip().rpartition("+")
    if plus and not last:  # the key + itself
        head, last = head.rstrip("+"), "+"
    modifiers = [part.strip().lower() for part in head.split("+") if part.strip()]
    last = last.strip() or last
    if len(last) != 1:
        last = last.lower()
    elif not last.isalnum():
        name = unicodedata.name(last, last).lower().replace("-", "_").replace(" ", "_")
        last = KEY_NAME_REPLACEMENTS.get(name, name)
    elif modifiers == ["shift"] and last.isalpha():
        return last.upper()
    elif modifiers:
        last = last.lower()
    return "+".join([*sorted(set(modifiers)), last])  # in the order that Textual reports


_PUNCTUATION = {normalized(sign): sign for sign in string.punctuation}  # Textual does not know all of it


def typed_by(key: str) -> str:
    """The character that a key in Textual's notation types; empty: none."""
    return _PUNCTUATION.get(key) or key_to_character(key) or ""


def types(key: str) -> bool:
    """Whether the prompt takes the key as a character."""
    return (sign := typed_by(key)) != "" and sign.isprintable()


def _fault(key: str, given: str, bound: Bound) -> str:
    *modifiers, last = key.split("+")
    for modifier in modifiers:
        if modifier not in MODIFIERS:
            return f'"{given}": {modifier} {unknown(modifier, MODIFIERS)}'
    if last not in _NAMED and not typed_by(last):
        return f'"{given}": {last or "nothing"} is not a key; write keys like ctrl+n, f5, alt+enter or ?'
    if other := SAME_TO_A_TERMINAL.get(key):
        return f'"{given}" is the same as {other} in a terminal; use another key'
    if (bound.priority or bound.place == "prompt") and typed_by(key):
        return f'"{given}" would act while you type; use a key like ctrl+n or f5'
    if not bound.place and not bound.priority and key in _editing():
        return f'"{given}" edits text in the prompt; use another key'
    if not bound.place and key in _FOCUS:
        return f'"{given}" moves the focus; use another key'
    return ""


@cache
def _editing() -> frozenset[str]:
    """The keys that a text area takes before commands get them."""
    from textual.widgets import TextArea

    keys = (each.key if isinstance(each, Binding) else each[0] for each in TextArea.BINDINGS)
    return frozenset(key for each in keys for key in each.split(","))


def _clashes(known: Mapping[str, Bound], chosen: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """The remapped bindings that conflict, and their errors. Default bindings may share a key on purpose."""
    found = {}
    for name, keys in chosen.items():
        for other in known.values():
            if other.id == name or not _overlap(known[name].place, other.place):
                continue
            taken = chosen.get(other.id) or tuple(map(normalized, other.keys))
            for key in set(keys).intersection(taken):
                found[name] = (
                    f'"{key}" is bound to both {_named(known[name])} and {_named(other)}: '
                    "use another key for one of them"
                )
    return found


def _named(bound: Bound) -> str:
    return f"{bound.id} ({bound.title})" if bound.title else bound.id


def _overlap(place: str, other: str) -> bool:
    return place == other or not place or not other
