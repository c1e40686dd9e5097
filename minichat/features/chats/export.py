"""Export a chat to a file, Markdown or JSON, and import one from JSON."""

import asyncio
import os
from functools import partial
from itertools import chain, count
from pathlib import Path

from engine.api.places import expanded
from minichat.chats.errors import BadExport
from minichat.chats.store import Store
from minichat.clients.bridge import in_thread
from minichat.features.chats.chats import reopen
from minichat.features.feature import Context, Feature, ScreenCommand
from minichat.shell.background import begin
from minichat.shell.paths import private_folder, read_file
from minichat.ui.dialogs.ask import ask
from minichat.ui.panes.tabs import titled
from minichat.ui.transcript.glyphs import one_line

_FORMATS = {".md": Store.export_markdown, ".json": Store.export_json}  # by the extension of the file
_SOON = 0.3  # seconds of an import that a user does not notice
_LONG = 600.0  # seconds; the notice of an import ends with it
_LONGEST = 60  # characters of a file's name; a file system takes 255 bytes, and a character has up to four


def export(context: Context) -> None:
    """Ask for a file and export to it; its extension selects the format."""
    program, chat, paths = context.program, context.chats.active.chat, context.program.paths
    name = "".join(letter if letter.isalnum() else "-" for letter in chat.title.lower()[:_LONGEST])
    name = name.strip("-") or "chat"

    def accept(answer: str) -> bool:
        if not answer.strip():
            return True
        file = expanded(answer.strip())
        if os.path.exists(file) and (file.is_file() or file.is_fifo()):  # opening a pipe may wait forever
            program.report(f"{file} already exists. Choose another name")
            return False
        if (write := _FORMATS.get(file.suffix.lower())) is None:
            program.report(f"Cannot export to {file}: the name must end in .md (Markdown) or .json")
            return False
        with program.reporting_errors():
            text = write(context.chats.services.store, chat.id)
            try:
                if file.parent == paths.exports:
                    private_folder(file.parent)
                _write(file, text)
            except OSError as error:  # an error for a full disk does not name the file
                program.report(f"Cannot write {file}: {error.strerror}")
                return False
            context.app.notify(f"Exported to {file.absolute()}")
        return True

    names = chain([name], (f"{name}-{number}" for number in count(2)))
    free = next(file for each in names if not (file := paths.exports / f"{each}.md").exists())
    ask(context.app, "Export to a file (.md or .json)", accept, str(free))


def _write(file: Path, text: str) -> None:
    """Write the whole file or nothing, so that the same name can be tried again."""
    if file.exists():  # a device: it cannot be replaced
        file.write_text(text, encoding="utf-8")
        return
    fresh = file.with_name(f".export.{os.getpid()}")
    try:
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(file)
    finally:
        fresh.unlink(missing_ok=True)


def import_(context: Context) -> None:
    """Ask for a file with an exported chat, and open it as a new chat."""
    _ask_for_import(context)


def _ask_for_import(context: Context, refused: str = "") -> None:
    """`refused`: an answer, to be corrected."""

    def accept(answer: str) -> bool:
        if answer.strip():
            begin(context.app, partial(_import, context, answer))
        return True

    ask(context.app, "Import a chat from a file (.json)", accept, refused, refused=bool(refused))


async def _import(context: Context, answer: str) -> None:
    """Import from the file on a thread. If that is soon done, it looks as if it had been at once."""
    file, program, prompt = expanded(answer.strip()), context.program, context.workspace.prompt
    store, before = context.chats.services.store, (context.chats.active, prompt.text)
    work = asyncio.create_task(in_thread(lambda: store.import_json(read_file(file))))
    await asyncio.wait({work}, timeout=_SOON)
    running = f"Importing {one_line(file.name)} ..."
    if slow := not work.done():
        context.app.notify(running, timeout=_LONG)
    with program.reporting_errors():
        try:
            chat = await work
        except OSError as error:
            program.report(f"Cannot read {file}: {error.strerror}")
        except UnicodeDecodeError:
            program.report(f"Cannot import {file}: not UTF-8 text")
        except BadExport as error:
            program.report(f"Cannot import {file}: {error}")
        else:
            waited = before == (context.chats.active, prompt.text) and len(context.app.screen_stack) == 1
            if slow:
                context.app.end_notice(running)
                way = "" if waited else f". {context.keys.name('chat.jump')} goes to it"
                context.app.notify(f"Imported {titled(chat.title)}{way}")
            if (opened := context.chats.of(chat.id)) is not None:  # with those of another screen
                context.workspace.go_to(opened)
            elif waited or not slow:
                await reopen(context, chat.id)
            return
    context.app.end_notice(running)
    if not slow:
        _ask_for_import(context, answer)


EXPORT = Feature(
    name="export",
    title="Export",
    commands=(
        ScreenCommand("chat.export", "Chats", "Export this chat to Markdown or JSON", export),
        ScreenCommand("chat.import", "Chats", "Import a chat from JSON", import_),
    ),
)
