"""The menus of a message and of a link."""

from collections.abc import Awaitable
from inspect import isawaitable

from textual.content import Content

from minichat.chats.model import Message
from minichat.features.feature import Context, MessageCommand
from minichat.ui.dialogs.pick import Choice, PickScreen


def message_menu(context: Context, message_id: int) -> None:
    active = context.chats.active

    def now() -> Message | None:
        """The message, with what a running reply has so far."""
        return next((each for each in active.messages if each.id == message_id), None)

    if (message := now()) is None:
        return

    async def take(command: MessageCommand | None) -> None:
        if command is not None:
            with context.program.reporting_errors():
                work: Awaitable[None] | None = command.run(context, now() or message)
                if isawaitable(work):
                    await work

    known = [each for feature in context.features for each in feature.message_commands if each.fits(message)]
    refuses = bool(context.lifecycle.refusal)
    fitting = [
        each for each in known if not ((each.when_idle and active.streaming) or (each.asks and refuses))
    ]
    loss = " (removes later messages)" if message_id != active.newest else ""
    choices = [
        Choice(Content(f" {each.title}{loss if each.cuts else ''}"), each)
        for each in sorted(fitting, key=lambda each: each.cuts)
    ]
    context.app.push_screen(PickScreen("Message", lambda _: choices), take)


def link(context: Context, address: str) -> None:
    """Offer to open or copy a link. The model wrote the address, so all of it is shown first."""

    async def take(action: str | None) -> None:
        match action:
            case "open":
                context.app.open_url(address)
            case "copy":
                await context.program.send_to_clipboard(address)

    shown = "".join(letter if letter.isprintable() else "�" for letter in address)
    choices = [("copy", "Copy the address")]
    if address.startswith(("https://", "http://")):
        choices.append(("open", "Open in the browser"))
    listed = [Choice(Content(f" {label}"), value) for value, label in choices]
    dialog = PickScreen("Link", lambda _: listed)
    dialog.say(shown)  # a title would be cut
    context.app.push_screen(dialog, take)
