"""Turn techniques off and on while the engine runs, to see what each is worth."""

from collections.abc import Iterator
from functools import partial

from textual.content import Content

from engine.api.commands import SetSwitch
from engine.api.snapshot import Switch
from minichat.features.feature import Context, Feature, Offer, ScreenCommand
from minichat.ui import sending
from minichat.ui.dialogs.pick import Choice, PickScreen
from minichat.ui.switches import MEANING, NAMES, named


def turn(context: Context, name: str, *, on: bool) -> None:
    """Turn a technique on or off; the monitor shows the state the engine reports."""
    shot, backend = context.engine.latest, context.program.backend
    if name not in [each.name for each in (shot.switches if shot else ())]:
        context.app.notify(f"The engine has no switch for {NAMES.get(name, name)}", severity="warning")
        return

    async def switch() -> None:
        await backend.send(SetSwitch(name, on))
        words = named(name, on)
        context.app.notify(f"{words[0].upper()}{words[1:]}, from the next step", timeout=2)

    sending.ask(context, switch())


def switches(context: Context) -> None:
    """List all techniques with their descriptions."""

    def take(chosen: Switch | None) -> None:
        if chosen is not None:  # as it was listed: another screen may have changed it since
            turn(context, chosen.name, on=not chosen.on)

    shot = context.engine.latest
    choices = [_choice(each) for each in shot.switches] if shot else []
    if choices:
        context.app.push_screen(PickScreen("Toggle a technique", lambda _: choices), take)
    else:
        context.app.notify("The engine is not loaded", severity="warning")


def _choice(switch: Switch) -> Choice[Switch]:
    return Choice(
        Content.assemble(
            (
                f" {'on ' if switch.on else 'off'} ",
                "bold $text-success" if switch.on else "bold $text-warning",
            ),
            (f" {NAMES.get(switch.name, switch.name):16} ", "bold"),
            (MEANING.get(switch.name, ""), "$text-muted"),
        ),
        switch,
    )


def _offers(context: Context) -> Iterator[Offer]:
    """A palette entry for each technique, so that it can be toggled by name."""
    for each in context.engine.latest.switches if context.engine.latest else ():
        title = f"Turn {NAMES.get(each.name, each.name)} {'off' if each.on else 'on'}"
        yield title, "Engine", partial(turn, context, each.name, on=not each.on)


SWITCHES = Feature(
    name="switches",
    title="Engine techniques",
    commands=(ScreenCommand("engine.switches", "View", "Toggle an engine technique", switches, "alt+x"),),
    offers=_offers,
)
