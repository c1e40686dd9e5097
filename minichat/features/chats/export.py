"""Export a chat to a file, Markdown or JSON, and import one from JSON."""

import os
from functools import partial
from itertools import chain, count
from pathlib import Path

from engine.api.places import expanded
from minichat.chats.errors import BadExport
from minichat.chats.store import Store
from minichat.features.chats.chats import reopen
from minichat.features.feature import Context, Feature, ScreenCommand
from minichat.shell.background import begin
from minichat.shell.paths import private_folder, read_file
from minichat.ui.dialogs.ask import ask

_FORMATS = {".md": Store.export_markdown, ".json": Store.export_json}  # by the extension of the file
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

    def accept(answer: str) -> bool:
        if not answer.strip():
            return True
        file = expanded(answer.strip())
        with context.program.reporting_errors():
            try:
                text = read_file(file)
                chat = context.chats.services.store.import_json(text)
            except OSError as error:
                context.program.report(f"Cannot read {file}: {error.strerror}")
            except UnicodeDecodeError:
                context.program.report(f"Cannot import {file}: not UTF-8 text")
            except BadExport as error:
                context.program.report(f"Cannot import {file}: {error}")
            else:
                begin(context.app, partial(reopen, context, chat.id))
                return True
        return False

    ask(context.app, "Import a chat from a file (.json)", accept)


EXPORT = Feature(
    name="export",
    title="Export",
    commands=(
        ScreenCommand("chat.export", "Chats", "Export this chat to Markdown or JSON", export),
        ScreenCommand("chat.import", "Chats", "Import a chat from JSON", import_),
    ),
)
