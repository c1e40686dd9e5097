"""Techniques turned off and on while the engine runs, to see what each is worth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.content import Content

from engine.commands import SetSwitch
from engine.snapshot import Switch
from minichat.screens.pick import Choice, PickScreen
from minichat.switches import MEANING, NAMES, named

if TYPE_CHECKING:
    from minichat.screens.main import MainScreen


def turn(screen: MainScreen, name: str) -> None:
    """The other way than it is now; what the engine says then is what is seen."""
    present = {each.name: each.on for each in screen.latest.switches} if screen.latest else {}
    if name not in present:
        screen.notify(f"the engine has no {NAMES.get(name, name)} to turn", severity="warning")
        return
    on = not present[name]
    screen.program.ask(screen.program.backend.send(SetSwitch(name, on)))
    screen.notify(f"{named(name, on)}, from the next step on", timeout=2)


def switches(screen: MainScreen) -> None:
    """All of them, with what each is for."""

    def take(name: str | None) -> None:
        if name is not None:
            turn(screen, name)

    choices = [_choice(each) for each in screen.latest.switches] if screen.latest else []
    if choices:
        screen.app.push_screen(PickScreen("turn off or on, while it runs", lambda _: choices), take)
    else:
        screen.notify("the engine has not been loaded", severity="warning")


def _choice(switch: Switch) -> Choice[str]:
    return Choice(
        Content.assemble(
            (
                f" {'on ' if switch.on else 'off'} ",
                "bold $text-success" if switch.on else "bold $text-warning",
            ),
            (f" {NAMES.get(switch.name, switch.name):16} ", "bold"),
            (MEANING.get(switch.name, ""), "$text-muted"),
        ),
        switch.name,
    )
