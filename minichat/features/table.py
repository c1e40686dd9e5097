"""Everything a person can do, once: bindings, palette, help, last line and settings read these tables."""

from collections.abc import Iterator, Sequence

from textual.binding import Binding

from minichat.features.feature import Feature, ScreenCommand
from minichat.settings.keymap import Bound
from minichat.shell.keys import bound_by

_NO_KEY = "no_key"  # which no terminal sends


def commands(features: Sequence[Feature]) -> tuple[ScreenCommand, ...]:
    """Those of all features, group after group."""
    found = [command for feature in features for command in feature.commands]
    groups = list(dict.fromkeys(command.group for command in found))
    return tuple(sorted(found, key=lambda command: groups.index(command.group)))


def bound(features: Sequence[Feature]) -> Iterator[Bound]:
    """Every binding that the settings may remap: commands, and widgets with keys of their own."""
    for command in commands(features):
        yield Bound(command.id, tuple(filter(None, command.keys.split(","))), title=command.title)
    for feature in features:
        for place, widget in feature.keyed:
            yield from bound_by(place, widget)


def bindings(features: Sequence[Feature]) -> Iterator[Binding]:
    """What Textual is given; each leads to the command of its id."""
    for command in commands(features):
        if command.run is not None:
            yield Binding(
                command.keys or _NO_KEY,  # so that the settings can give it one
                f"command({command.id!r})",
                command.title,
                id=command.id,
                show=False,
                priority=command.priority,
            )
