"""Techniques turned off and on while the engine runs, to see what each is worth."""

from collections.abc import Iterator
from functools import partial

from textual.content import Content

from engine.api.commands import SetSwitch
from engine.api.snapshot import Switch
from minichat.features.feature import Context, Feature, Offer, ScreenCommand
from minichat.ui.dialogs.pick import Choice, PickScreen
from minichat.ui.switches import MEANING, NAMES, named


def turn(context: Context, name: str) -> None:
    """The other way than it is now; what the engine says then is what is seen."""
    shot, backend = context.engine.latest, context.program.backend
    present = {each.name: each.on for each in shot.switches} if shot else {}
    if name not in present:
        context.app.notify(f"the engine has no {NAMES.get(name, name)} to turn", severity="warning")
        return
    on = not present[name]
    context.program.ask(backend.send(SetSwitch(name, on)))
    context.app.notify(f"{named(name, on)}, from the next step on", timeout=2)


def switches(context: Context) -> None:
    """All of them, with what each is for."""

    def take(name: str | None) -> None:
        if name is not None:
            turn(context, name)

    shot = context.engine.latest
    choices = [_choice(each) for each in shot.switches] if shot else []
    if choices:
        context.app.push_screen(PickScreen("turn off or on, while it runs", lambda _: choices), take)
    else:
        context.app.notify("the engine has not been loaded", severity="warning")


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


def _offers(context: Context) -> Iterator[Offer]:
    """One key less, for those who know its name."""
    for each in context.engine.latest.switches if context.engine.latest else ():
        title = f"Turn {NAMES.get(each.name, each.name)} {'off' if each.on else 'on'}"
        yield title, "Engine", partial(turn, context, each.name)


SWITCHES = Feature(
    name="switches",
    title="Techniques of the engine",
    commands=(ScreenCommand("engine.switches", "View", "Turn a technique off or on", switches, "alt+x"),),
    offers=_offers,
)
