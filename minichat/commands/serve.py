"""`minichat serve`: the engine over HTTP, for OpenAI's clients, for monitors, and for screens elsewhere."""

import argparse
import logging
import os
import resource
import secrets
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engine.api.commands import Warm
from engine.api.errors import BadInput, EngineError
from engine.api.events import Died
from minichat import __version__
from minichat.clients.address import is_loopback
from minichat.commands.options import engine_config, failed, show_progress
from minichat.shell.paths import locate, private_folder

if TYPE_CHECKING:
    from engine.host.protocol import EngineHost

_CLOSE_WITHIN = 5.0  # seconds; a step that takes longer is left behind
_SHORTEST_KEY = 16
_FILES = 16_384  # that may be open at once, sockets among them
_LONGEST_DRAIN = 3600.0  # seconds
_LARGEST_BODY = 1024  # MiB


@dataclass(frozen=True, slots=True)
class Told:
    """Who hears how far the start is, and of the engine's end; and where its process writes its log."""

    progress: Callable[[int, int], None]
    ready: Callable[[], None]
    log: Path
    died: Callable[[str], None] = lambda why: None


def run(options: argparse.Namespace) -> int:
    try:
        check(options)
        keys = () if options.no_key else find_keys(options.api_key_file)
        return serve(options, keys)
    except EngineError as error:
        return failed(error)


def check(options: argparse.Namespace) -> None:
    """What makes no sense, or is not safe, before anything is loaded."""
    if bool(options.tls_cert) != bool(options.tls_key):
        raise BadInput("--tls-cert and --tls-key belong together")
    for name in ("tls_cert", "tls_key"):
        if (file := getattr(options, name)) and not Path(file).is_file():
            raise BadInput(f"--{name.replace('_', '-')}: there is no file {file}")
    if options.no_key and options.api_key_file:
        raise BadInput("--no-key and --api-key-file contradict each other")
    if options.no_key and not options.uds and not is_loopback(options.host) and not options.insecure:
        raise BadInput(
            f"--no-key on {options.host} opens the engine to everybody who can reach this machine; "
            "leave it out, or add --insecure if that is what you want"
        )
    if not 0 <= options.port <= 65535:
        raise BadInput(f"--port must be from 0 to 65535, not {options.port}")
    for name in ("max_in_flight", "max_per_key"):
        if (count := getattr(options, name)) < 1:
            raise BadInput(f"--{name.replace('_', '-')} must be at least 1, not {count}")
    if not 1 <= options.max_body <= _LARGEST_BODY:
        raise BadInput(f"--max-body must be from 1 to {_LARGEST_BODY} MiB, not {options.max_body}")
    if not 0 <= options.drain <= _LONGEST_DRAIN:
        raise BadInput(f"--drain must be from 0 to {_LONGEST_DRAIN:g} seconds, not {options.drain:g}")
    if options.rate is not None and not options.dry_run:
        raise BadInput("--rate is for --dry-run: a real model is as fast as it is")
    if options.rate is not None and not 0 < options.rate <= 1e6:
        raise BadInput(f"--rate must be tokens a second, above 0, not {options.rate:g}")


def find_keys(file: str | None) -> tuple[str, ...]:
    """The keys of a file, one a line; or this person's own, made when there is none."""
    if file is None:
        return (own_key(locate().server_key),)
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise BadInput(f"--api-key-file {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadInput(f"--api-key-file {file} is not UTF-8 text") from None
    keys = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    if not keys:
        raise BadInput(f"--api-key-file {file} has no key; write one a line")
    if short := [key for key in keys if len(key) < _SHORTEST_KEY]:
        raise BadInput(f"--api-key-file {file}: a key of {len(short[0])} characters is guessed too easily")
    return keys


def own_key(file: Path) -> str:
    """Kept for its owner alone. Whoever makes it first wins, where two servers start together."""
    try:
        private_folder(file.parent)
        if not file.exists():
            _make_key(file)
        if file.stat().st_mode & 0o077:
            raise BadInput(f"{file} can be read by others; chmod 600 it, or delete it and a new key is made")
        key = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            f"the server's key cannot be kept in {file}: {error}; give one by --api-key-file"
        ) from None
    if len(key) < _SHORTEST_KEY:
        raise BadInput(f"{file} holds no key; delete it and a new one is made")
    return key


def _make_key(file: Path) -> None:
    """It is there whole or not at all, so that a server that starts beside this one reads it whole."""
    fresh = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
    with open(fresh, "x", encoding="ascii", opener=_private) as made:
        made.write(f"sk-minichat-{secrets.token_urlsafe(32)}\n")
    with suppress(FileExistsError):
        os.link(fresh, file)
    fresh.unlink()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def serve(options: argparse.Namespace, keys: tuple[str, ...], told: Told | None = None) -> int:
    """Listens, loads, serves until a signal comes."""
    from engine.server.http.listen import tcp_socket, unix_socket

    with ExitStack() as stack:
        uds = Path(options.uds).expanduser() if options.uds else None
        bound = unix_socket(uds) if uds else tcp_socket(options.host, options.port)
        stack.callback(bound.close)
        if uds:
            stack.callback(uds.unlink, missing_ok=True)
        return listen(options, keys, bound, uds, told or _terminal())


def listen(
    options: argparse.Namespace, keys: tuple[str, ...], bound: socket.socket, uds: Path | None, told: Told
) -> int:
    from engine.server.config import ServerConfig
    from engine.server.http.listen import server

    _room_for_sockets()
    config = ServerConfig(
        name=served_name(options),
        version=__version__,
        keys=keys,
        any_host=options.insecure or uds is not None,
        in_flight=options.max_in_flight,
        per_key=min(options.max_per_key, options.max_in_flight),
        log_prompts=options.log_prompts,
        max_body=options.max_body * 2**20,
        drain=options.drain,
    )
    _log(options)
    host = engine(options, told)
    host.send(Warm()).result()
    built = server(
        host,
        config,
        certificate=Path(options.tls_cert) if options.tls_cert else None,
        key=Path(options.tls_key) if options.tls_key else None,
        access_log=options.access_log,
    )
    if uds:
        built.leave_nothing = lambda: uds.unlink(missing_ok=True)
    announce(options, keys, bound, uds)
    told.ready()
    unsubscribe = host.subscribe(lambda event: told.died(event.error) if type(event) is Died else None)
    built.run([bound])
    unsubscribe()  # that it is closed now is no death
    closing = threading.Thread(target=host.close, name="minichat-close", daemon=True)
    closing.start()
    closing.join(_CLOSE_WITHIN)
    if closing.is_alive():
        built.leave_nothing()
        os._exit(1)  # a thread is inside a step; taking the interpreter down around it would abort
    return 0


def served_name(options: argparse.Namespace) -> str:
    """What clients call the model: of a folder, its last name."""
    folder = Path(options.model).expanduser()
    return str(options.served_name or (folder.resolve().name if folder.is_dir() else options.model))


def engine(options: argparse.Namespace, told: Told) -> "EngineHost":
    """The model's engine, in a process of its own: what clients cost is taken from no step. Or a dry one."""
    config = engine_config(options)
    if options.dry_run:
        from engine.host.thread import EngineThread
        from engine.server.dry import dry_engine

        return EngineThread(dry_engine(config, rate=options.rate or 30.0))
    from engine.host.process import EngineProcess

    private_folder(told.log.parent)
    return EngineProcess(config, told.log, progress=told.progress)


def announce(
    options: argparse.Namespace, keys: tuple[str, ...], bound: socket.socket, uds: Path | None
) -> None:
    """Where it listens, and with which key. A key itself is written to a terminal only, never into a log."""
    scheme = "https" if options.tls_cert else "http"
    if uds:
        place = f"the socket {uds}"
    else:
        host, port = bound.getsockname()[:2]
        place = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/v1"
    say(f"serving {served_name(options)} at {place}; Ctrl+C ends it")
    if not keys:
        say("no key is asked for: everybody who can reach it may use it")
    elif options.api_key_file:
        say(f"keys that open it: {len(keys)}, of {options.api_key_file}")
    else:
        shown = f": {keys[0]}" if sys.stderr.isatty() else ""
        say(f"its key is in {locate().server_key}{shown}")


def _is_news(record: logging.LogRecord) -> bool:
    """That a client sent what is no UTF-8 is none: strangers could fill a disk with it."""
    return not record.getMessage().startswith("Invalid ")


def _room_for_sockets() -> None:
    """The usual 1024 files are fewer than the clients that may come at once."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def _terminal() -> Told:
    """Tells whoever sits there, who has read by then that it is ready."""
    return Told(
        show_progress,
        ready=lambda: None,
        log=locate().engine_log,
        died=lambda why: say(f"{why}; requests are refused until it is started anew"),
    )


def say(line: str) -> None:
    print(f"minichat: {line}", file=sys.stderr, flush=True)


def _log(options: argparse.Namespace) -> None:
    """Lines for whoever keeps them: no prompt, no reply and no key is among them unless asked."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="minichat: %(message)s")
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    if options.access_log:
        logging.getLogger("uvicorn.access").setLevel(logging.INFO)
    if options.log_prompts:
        logging.getLogger("minichat.server").setLevel(logging.INFO)
