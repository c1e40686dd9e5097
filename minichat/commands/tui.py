"""`minichat`: the screen. Nothing heavy is imported before its first frame."""

import argparse
import logging
import os
import sys
from contextlib import suppress
from pathlib import Path

from engine.errors import BadInput, EngineError
from engine.params import FIELDS
from minichat.attachments import CannotAttach, attach
from minichat.chats.model import Message
from minichat.commands.options import engine_config, failed
from minichat.first import First, first_message, keys_from_terminal, read_pipe
from minichat.paths import locate, private_folder
from minichat.settings import Settings, load
from minichat.terminal import Terminal, calm, teach_alt_keys

_OPTIONS = {"runs_in": "engine"}  # whose names are others here
_ENGINE = ("model", "device", "dtype", "attention", "runs_in", "blocks", "max_context")


def run(options: argparse.Namespace) -> int:
    paths = locate()
    loaded = load(paths.settings)
    settle(options, loaded.settings)
    try:
        first = _first(options)
    except CannotAttach as error:
        return failed(BadInput(str(error)))
    if first is None:
        from minichat.commands import chat

        return chat.run(options)
    if not _on_screen(options):
        return _answered(options, first)
    terminal = Terminal.found()
    calm(terminal)
    from minichat.app import RESTART, MinichatApp, Start
    from minichat.backends.local import LocalBackend, in_process, on_thread
    from minichat.chats.store import Store
    from minichat.interpreter import share

    teach_alt_keys()
    share()
    settings = loaded.settings
    try:
        config = engine_config(options)
        given = {name: value for name in FIELDS if (value := getattr(options, name, None)) is not None}
        params = settings.sampling.changed(**given)
    except EngineError as error:
        return failed(error)
    start = Start(
        model=config.model,
        paths=paths,
        terminal=terminal,
        params=params,
        system=options.system,
        ascii=options.ascii or settings.screen.ascii or not terminal.unicode,
        loaded=loaded,
        first=first,
    )
    _keep_log(paths.log)
    launch = in_process(paths.engine_log) if options.runs_in == "process" else on_thread
    store, backend = Store(paths.chats), LocalBackend(config, launch)
    app = MinichatApp(backend, store, start)
    app.run(mouse=settings.screen.mouse)
    store.close()
    closed = backend.close()
    code = app.return_code or 0
    if code == RESTART:
        os.execv(sys.executable, [sys.executable, "-m", "minichat", *again(options, app.keeper.model)])
    if not closed:
        os._exit(code)  # a thread is inside torch, which aborts when the interpreter is taken down around it
    return code


def _on_screen(options: argparse.Namespace) -> bool:
    """Whether there is a terminal to draw on, and one that keys come from."""
    if options.plain or not sys.stdout.isatty():
        return False
    return (sys.stdin is not None and sys.stdin.isatty()) or keys_from_terminal()


def _first(options: argparse.Namespace) -> First | None:
    """What begins the chat; None where lines are to be answered one by one, without a screen."""
    lines = options.plain or not sys.stdout.isatty()
    if lines and not options.text:
        return None
    return first_message(options.text, read_pipe())


def _answered(options: argparse.Namespace, first: First) -> int:
    """Without a screen a question gets its reply on standard output, as from generate."""
    from minichat.commands import generate

    if first.notice:
        return failed(BadInput(first.notice))
    try:
        files = attach(first.text, first.piped)
    except CannotAttach as error:
        return failed(BadInput(str(error)))
    options.text = Message(0, "user", first.text, attachments=files).whole
    options.raw = options.json = False
    return generate.run(options)


def again(options: argparse.Namespace, model: str) -> list[str]:
    """The command line that starts the same program with this model; what was asked has been asked."""
    words = ["chat", f"--model={model}"]
    for name, value in vars(options).items():
        if name in ("command", "text", "model") or value is None or value is False:
            continue
        option = f"--{_OPTIONS.get(name, name).replace('_', '-')}"
        values = value if isinstance(value, list) else [value]
        words += [option] if value is True else [f"{option}={each}" for each in values]
    return words


def settle(options: argparse.Namespace, settings: Settings) -> None:
    """What the command line leaves open is as the settings say."""
    for name in _ENGINE:
        if getattr(options, name) is None:
            setattr(options, name, getattr(settings.engine, name))
    if options.system is None:
        options.system = settings.chat.system


def _keep_log(file: Path) -> None:
    """Into a file: the screen belongs to the chats."""
    handler: logging.Handler = logging.NullHandler()
    with suppress(OSError):  # where nothing can be written, the store says so
        private_folder(file.parent)
        handler = logging.FileHandler(file, delay=True, encoding="utf-8")
    logging.basicConfig(
        level=logging.INFO, handlers=[handler], format="%(asctime)s %(name)s %(levelname)s %(message)s"
    )
    logging.getLogger("asyncio").setLevel(logging.WARNING)
