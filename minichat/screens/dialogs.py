"""The questions that the main screen asks, and what comes of the answers."""

from __future__ import annotations

from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

from textual.content import Content

from engine.errors import EngineError
from minichat.catalogue import Model
from minichat.chats.model import Message
from minichat.decoding import Preset, grammar_of, preset_of
from minichat.paths import private_folder
from minichat.screens import deeds
from minichat.screens.ask import AskScreen
from minichat.screens.help import HelpScreen
from minichat.screens.jump import delete_chat as delete_chat
from minichat.screens.jump import jump as jump
from minichat.screens.models import ModelScreen
from minichat.screens.pick import Choice, PickScreen
from minichat.screens.switches import switches as switches
from minichat.screens.why import why as why
from minichat.settings.presets import load_presets

if TYPE_CHECKING:
    from minichat.screens.main import MainScreen


def help(screen: MainScreen) -> None:
    screen.app.push_screen(HelpScreen(screen.program.keymap))


def models(screen: MainScreen) -> None:
    program = screen.program

    def take(model: Model | None) -> None:
        if model is not None:
            program.keeper.choose(model)

    screen.app.push_screen(ModelScreen(program.keeper, program.settings.engine.folders), take)


def rename(screen: MainScreen) -> None:
    active = screen.chats.active

    def take(title: str | None) -> None:
        if title and title.strip():
            with screen.program.complaining():
                active.rename(title.strip())

    screen.app.push_screen(AskScreen("rename this chat", active.chat.title), take)


def instruct(screen: MainScreen) -> None:
    active = screen.chats.active

    def take(text: str | None) -> None:
        if text is not None:
            with screen.program.complaining():
                active.instruct(text.strip())

    screen.app.push_screen(
        AskScreen("system prompt, from the next reply on", active.chat.system, lines=True), take
    )


def export(screen: MainScreen) -> None:
    """To a file; its ending says in which form."""
    chat, paths = screen.chats.active.chat, screen.program.paths
    name = "".join(letter if letter.isalnum() else "-" for letter in chat.title.lower()).strip("-") or "chat"

    def take(answer: str | None) -> None:
        if not answer or not answer.strip():
            return
        file = Path(answer.strip()).expanduser()
        if file.is_file():
            screen.program.complain(f"{file} is there already: nothing was exported, take another name")
            return
        store = screen.chats.desk.store
        with screen.program.complaining():
            text = store.export_json(chat.id) if file.suffix == ".json" else store.export_markdown(chat.id)
            try:
                if file.parent == paths.exports:
                    private_folder(file.parent)
                file.write_text(text, encoding="utf-8")
            except OSError as error:  # of a full disk it does not know the file
                screen.program.complain(f"cannot write {file}: {error.strerror}")
            else:
                screen.notify(f"exported to {file}")

    names = chain([name], (f"{name}-{number}" for number in count(2)))
    free = next(file for each in names if not (file := paths.exports / f"{each}.md").exists())
    screen.app.push_screen(AskScreen("export to a file: .md or .json", str(free)), take)


def save_preset(screen: MainScreen) -> None:
    params = screen.chats.active.chat.params

    def take(name: str | None) -> None:
        if name and name.strip():
            screen.program.presets.save(name.strip(), params)

    screen.app.push_screen(AskScreen("save this decoding as a preset called"), take)


def grammar(screen: MainScreen) -> None:
    """What replies have to be: a schema lies in a file; an expression is written between two slashes."""
    active = screen.chats.active
    held = active.chat.params.grammar

    def take(answer: str | None) -> None:
        if answer is None:
            return
        with screen.program.complaining():
            try:
                active.tune(active.chat.params.changed(grammar=grammar_of(answer)))
            except EngineError as error:
                screen.program.complain(str(error))

    given = f"/{held.text}/" if held and held.kind == "regex" else ""
    screen.app.push_screen(
        AskScreen("replies are: a file with a JSON schema, or /an expression/", given), take
    )


def delete_preset(screen: MainScreen) -> None:
    """One of the person's own; the one that is in use stands first."""
    program, params = screen.program, screen.chats.active.chat.params
    own = [Preset.of(*each) for each in load_presets(program.paths.presets).own.items()]
    if not own:
        screen.notify("there is no preset of yours; those that are shipped stay", severity="warning")
        return
    used = preset_of(params, own)
    ordered = sorted(own, key=lambda each: each is not used)
    choices = [Choice(Content.assemble(" ", each.name), each.name) for each in ordered]

    def take(name: str | None) -> None:
        if name is not None:
            program.presets.delete(name)

    screen.app.push_screen(PickScreen("delete a preset for good", lambda _: choices), take)


def message_menu(screen: MainScreen, message_id: int) -> None:
    """What can be done with one message."""
    active = screen.chats.active
    message = next((each for each in active.chat.messages if each.id == message_id), None)
    if message is None:
        return

    async def take(action: str | None) -> None:
        with screen.program.complaining():
            match action:
                case "fork":
                    await deeds.fork(screen, message_id)
                case "edit":
                    deeds.edit(screen, message_id)
                case "retry":
                    active.retry(message_id)
                case "pick":
                    screen.picking.begin(message_id)
                case "copy":
                    await screen.program.send_to_clipboard(message.text)

    screen.app.push_screen(
        PickScreen("this message", lambda _: _choices(message, busy=active.streaming)), take
    )


def link(screen: MainScreen, address: str) -> None:
    """The address is the model's: it is shown whole before anything is done with it."""

    async def take(action: str | None) -> None:
        match action:
            case "open":
                screen.app.open_url(address)
            case "copy":
                await screen.program.send_to_clipboard(address)

    shown = "".join(letter if letter.isprintable() else "�" for letter in address)
    choices = [("copy", "Send the address to the clipboard")]
    if address.startswith(("https://", "http://")):
        choices.append(("open", "Open it in a browser on this machine"))
    listed = [Choice(Content(f" {label}"), value) for value, label in choices]
    screen.app.push_screen(PickScreen(shown, lambda _: listed), take)


def _choices(message: Message, *, busy: bool) -> list[Choice[str]]:
    choices = [("copy", "Send it to the clipboard"), ("fork", "Fork the chat here")]
    if not busy and message.role == "user":
        choices.append(("edit", "Edit it and send it again; what came after goes"))
    if not busy and message.role == "assistant":
        choices.append(("pick", "Walk along its tokens, and go on with another one"))
        choices.append(("retry", "Draw it again; what came after goes"))
    return [Choice(Content(f" {label}"), value) for value, label in choices]
