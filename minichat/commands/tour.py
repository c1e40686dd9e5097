"""`minichat tour`: demonstrate the engine on the real screen, with temporary chats."""

import argparse
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from engine.api.config import EngineConfig
from engine.api.errors import BadInput, EngineError
from minichat.commands.options import failed
from minichat.commands.screen import take_terminal
from minichat.plural import plural
from minichat.settings import load
from minichat.settings.load import Loaded
from minichat.settings.schema import SAMPLING
from minichat.shell.again import announce
from minichat.shell.interpreter import loading
from minichat.shell.paths import Paths, locate
from minichat.shell.terminal import Terminal, fix_alt_keys

if TYPE_CHECKING:
    from minichat.chats.store import Store
    from minichat.start import Start

_LOADED_WITHIN, _LOOK_EVERY = 60.0, 0.1  # seconds


def run(options: argparse.Namespace) -> int:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return failed(BadInput("the tour needs a terminal"))
    with tempfile.TemporaryDirectory(prefix="minichat-tour-") as folder:
        code, closed = _show(options, locate(), Path(folder))
    if not closed:
        os._exit(code)  # a thread is inside torch, which would abort during interpreter shutdown
    return code


def _show(options: argparse.Namespace, paths: Paths, folder: Path) -> tuple[int, bool]:
    """Run with the user's settings and themes. Return the exit code and whether the engine ended."""
    terminal = take_terminal(paths.log)
    with loading("screen"):
        from minichat.app import MinichatApp
        from minichat.chats.store import Store
        from minichat.clients.local import LocalBackend
        from minichat.features.leaving import RESTART
        from minichat.features.tour.feature import KEEP
        from minichat.features.tour.pages import BLOCKS

    fix_alt_keys()
    own = replace(paths, state=folder)
    store = Store(own.chats)
    while True:
        loaded = load(paths.settings)
        start = start_of(own, terminal, loaded, ascii=options.ascii)
        backend = LocalBackend(EngineConfig(model="pocket", device="cpu", blocks=BLOCKS))
        app = MinichatApp(backend, store, start)
        app.run(mouse=loaded.settings.screen.mouse)
        if (code := app.return_code or 0) == RESTART:
            announce()
        closed, until = backend.close(), time.monotonic() + _LOADED_WITHIN
        while code == RESTART and not closed and time.monotonic() < until:  # it is being loaded
            time.sleep(_LOOK_EVERY)
            closed = backend.close()
        if code != RESTART or not closed:
            break
    if code == KEEP:
        code = keep(store, Store(paths.chats))
    store.close()
    return code, closed


def start_of(paths: Paths, terminal: Terminal, loaded: Loaded, *, ascii: bool) -> "Start":
    """Chats are sampled as new ones are without settings: a grammar or beams would change what pages show."""
    from minichat.start import Start

    return Start(
        model="pocket",
        paths=paths,
        terminal=terminal,
        params=SAMPLING,
        ascii=ascii or loaded.settings.screen.ascii or not terminal.unicode,
        loaded=loaded,
        tour=True,
    )


def keep(store: "Store", home: "Store") -> int:
    """Copy the chats of the tour to the user's own, and say so or why not. Return the exit code."""
    from minichat.chats.errors import StoreError

    count, why = 0, ""
    try:
        count = keep_chats(store, home)
    except StoreError as error:
        why = str(error)
    if why or home.unsaved:
        return failed(EngineError(f"the chats are not kept: {why or home.notices[-1]}"))
    home.close()
    say_kept(count)
    return 0


def keep_chats(store: "Store", home: "Store") -> int:
    """Copy the chats of the tour that have messages to the user's own."""
    used = [each for each in store.open_chats() if each.messages]
    for each in used:
        home.import_json(store.export_json(each.id))
    return len(used)


def say_kept(count: int) -> None:
    """Tell the user, and the screen that started the tour."""
    from minichat.features.tour.feature import KEPT

    print(f"minichat: {plural(count, 'chat')} kept")
    if file := os.environ.get(KEPT):
        Path(file).write_text(str(count))
