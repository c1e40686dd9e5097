"""Run the screen on a terminal, with any backend."""

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from engine.api.errors import EngineError
from engine.api.params import FIELDS, SamplingParams
from minichat.commands.options import failed, refuse_chances
from minichat.plural import plural
from minichat.settings import Loaded, Settings
from minichat.shell.again import announce, restart, restarted
from minichat.shell.first import First
from minichat.shell.interpreter import loading, share
from minichat.shell.paths import Paths, private_folder
from minichat.shell.streams import draw_on_terminal
from minichat.shell.terminal import Terminal, adapt_environment, fix_alt_keys

if TYPE_CHECKING:
    from minichat.chats.store import Store
    from minichat.clients.protocol import Backend
    from minichat.start import Blame


class SamplingOptions(NamedTuple):
    """The sampling parameters and system prompt of a new chat."""

    params: SamplingParams
    system: str
    named: bool  # set on the command line, not only in the settings


def sampling_options(options: argparse.Namespace, settings: Settings) -> SamplingOptions:
    """The options of the command line, with the settings as defaults."""
    refuse_chances(options)
    given = {name: value for name in FIELDS if (value := getattr(options, name, None)) is not None}
    system = settings.chat.system if options.system is None else options.system
    named = bool(given) or system != settings.chat.system
    return SamplingOptions(settings.sampling.changed(**given), system, named)


def take_terminal(log: Path) -> Terminal:
    """Prepare this process for a screen. Call before its modules are imported."""
    terminal = Terminal.found()
    adapt_environment(terminal)
    draw_on_terminal()
    share()
    _keep_log(log)
    return terminal


def show(
    options: argparse.Namespace,
    paths: Paths,
    loaded: Loaded,
    engine: Callable[[], "Backend"],
    again: Callable[[str], Sequence[str]],
    *,
    model: str = "",
    first: First | None = None,
    blame: "Callable[[EngineError], Blame] | None" = None,
) -> int:
    """Run until the user quits. `again` returns the command line that restarts it with a model.

    `blame`: of Start.
    """
    terminal = take_terminal(paths.log)
    with loading("screen"):
        from minichat.app import MinichatApp
        from minichat.chats.store import Store
        from minichat.features.leaving import RESTART
        from minichat.start import Start

    fix_alt_keys()
    settings = loaded.settings
    try:
        chosen = sampling_options(options, settings)
    except EngineError as error:
        return failed(error, options)
    continues = restarted()
    start = Start(
        model=model,
        paths=paths,
        terminal=terminal,
        params=chosen.params,
        system=chosen.system,
        named=chosen.named and not continues,
        ascii=options.ascii or settings.screen.ascii or not terminal.unicode,
        loaded=loaded,
        first=first or First(),
        blame=blame,
    )
    store, backend = Store(paths.chats), engine()
    app = MinichatApp(backend, store, start)
    app.run(mouse=settings.screen.mouse)
    if (code := app.return_code or 0) == RESTART:
        announce()
    say_lost(store, paths.chats)
    store.close()
    closed = backend.close()
    if code == RESTART:
        restart(again(app.lifecycle.model))
    if not closed:
        os._exit(code)  # a thread is inside torch, which would abort during interpreter shutdown
    return code


def say_lost(store: "Store", file: Path) -> None:
    """Say which messages are lost: the disk may have filled up only while the screen was closing."""
    from minichat.chats.model import UNTITLED
    from minichat.ui.transcript.glyphs import one_line

    if lost := store.lost():
        many = "; ".join(
            f'{plural(count, "message")} of "{one_line(title) or UNTITLED}"' for title, count in lost.items()
        )
        print(f"minichat: cannot write {file}. Not saved: {many}", file=sys.stderr)


def _keep_log(file: Path) -> None:
    """Log to a file, because the terminal shows the screen."""
    handler: logging.Handler = logging.NullHandler()
    with suppress(OSError):  # if the folder is not writable, the store reports it
        private_folder(file.parent)
        handler = logging.FileHandler(file, delay=True, encoding="utf-8")
    logging.basicConfig(
        level=logging.INFO, handlers=[handler], format="%(asctime)s %(name)s %(levelname)s %(message)s"
    )
    for noisy in ("asyncio", "httpx", "httpcore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
