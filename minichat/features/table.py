"""All user commands in one place: bindings, palette, help, last line and settings use these tables."""

from collections.abc import Iterator, Sequence

from textual.binding import Binding

from minichat.features.feature import Feature, ScreenCommand
from minichat.settings.keymap import Bound
from minichat.shell.keys import bound_by

_NO_KEY = "no_key"  # a name that no terminal sends


def commands(features: Sequence[Feature]) -> tuple[ScreenCommand, ...]:
    """The commands of all features, sorted by group."""
    found = [command for feature in features for command in feature.commands]
    groups = list(dict.fromkeys(command.group for command in found))
    return tuple(sorted(found, key=lambda command: groups.index(command.group)))


def bound(features: Sequence[Feature]) -> Iterator[Bound]:
    """All bindings that the settings can remap: commands, and widgets with their own keys."""
    for command in commands(features):
        place = "" if command.run is not None else "prompt"
        yield Bound(
            command.id, tuple(filter(None, command.keys.split(","))), place, command.title, command.priority
        )
    for feature in features:
        for place, widget in feature.keyed:
            yield from bound_by(place, widget)


def bindings(features: Sequence[Feature]) -> Iterator[Binding]:
    """Textual bindings, each of which runs the command of its id."""
    for command in commands(features):
        if command.run is not None:
            yield Binding(
                command.keys or _NO_KEY,  # so that the settings can assign one
                f"command({command.id!r})",
                command.title,
                id=command.id,
                show=False,
                priority=command.priority,
            )
