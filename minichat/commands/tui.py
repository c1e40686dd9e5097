"""`minichat`: the screen. Nothing heavy is imported before its first frame."""

import argparse
import logging
import os
import sys
from contextlib import suppress
from pathlib import Path

from engine.errors import EngineError
from engine.params import FIELDS
from minichat.commands.options import engine_config, failed
from minichat.paths import locate, private_folder
from minichat.settings import Settings, load
from minichat.terminal import Terminal, calm, teach_alt_keys

_ENGINE = ("model", "device", "dtype", "attention", "blocks", "max_context")


def run(options: argparse.Namespace) -> int:
    paths = locate()
    loaded = load(paths.settings)
    settle(options, loaded.settings)
    if options.plain or not (sys.stdin.isatty() and sys.stdout.isatty()):
        from minichat.commands import chat

        return chat.run(options)
    terminal = Terminal.found()
    calm(terminal)
    from minichat.app import RESTART, MinichatApp, Start
    from minichat.backends.local import LocalBackend
    from minichat.chats.store import Store

    teach_alt_keys()
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
    )
    _keep_log(paths.log)
    store, backend = Store(paths.chats), LocalBackend(config)
    app = MinichatApp(backend, store, start)
    app.run(mouse=settings.screen.mouse)
    store.close()
    closed = backend.close()
    code = app.return_code or 0
    if code == RESTART:
        os.execv(sys.executable, [sys.executable, "-m", "minichat", *sys.argv[1:]])
    if not closed:
        os._exit(code)  # a thread is inside torch, which aborts when the interpreter is taken down around it
    return code


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
