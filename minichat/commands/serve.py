"""`minichat serve`: serve the engine over HTTP, for OpenAI clients, monitors and remote screens."""

import argparse
import logging
import os
import re
import resource
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from engine.api.config import EngineConfig
from engine.api.errors import BadInput, EngineError
from engine.api.places import expanded
from engine.gguf.header import is_gguf
from engine.gguf.parts import model_name
from minichat import __version__
from minichat.clients.address import PORT, is_loopback
from minichat.commands.arguments import REQUESTS_A_REPLICA
from minichat.commands.options import check_replicas, engine_config, failed, show_progress
from minichat.doing import shown
from minichat.models.watching import watch
from minichat.plural import plural
from minichat.shell import interpreter
from minichat.shell.certificates import password_of
from minichat.shell.paths import locate, private_folder
from minichat.shell.server_keys import find_keys

if TYPE_CHECKING:
    from concurrent.futures import Future

    from engine.fleet.scaling import Autoscaler
    from engine.host.client import EngineClient
    from engine.host.launching import Launch
    from engine.server.config import ServerConfig
    from engine.server.http.listen import Server
    from engine.server.startup import Startup

_CLOSE_WITHIN = 5.0  # seconds; a longer step is abandoned
_FILES = 16_384  # limit of open files, including sockets
_LONGEST_DRAIN = 3600.0  # seconds
_LARGEST_BODY = 1024  # MiB
_ADDRESS: dict[str, object] = {"host": "127.0.0.1", "port": PORT}  # unless there is a socket
_OF_WEIGHTS: dict[str, object] = {  # options of the weights and their cache, with their defaults
    "device": "auto",
    "tp": 1,
    "pp": 1,
    "meet": None,
    "dtype": "auto",
    "attention": "auto",
    "quantization": "none",
    "kv": "none",
    "kv_window": None,
    "kv_budget": None,
    "kv_eviction": None,
    "kv_host": None,
    "kv_disk": None,
    "draft": None,
    "adapter": [],
    "dummy_weights": False,
    "no_warm": False,
}
_PREFIX = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_ORIGIN = re.compile(r"https?://[a-z0-9.\[\]:-]+")


@dataclass(frozen=True, slots=True)
class ServerCallbacks:
    """Callbacks for progress, readiness and the engine's death, and the log file of its process."""

    progress: Callable[[int, int], None]
    ready: Callable[[], None]
    log: Path
    died: Callable[[str], None] = lambda why: None
    phase: Callable[[str], None] = lambda doing: None  # called with the phase of the start


def run(options: argparse.Namespace) -> int:
    try:
        check(options)
        if options.dry_run:
            _refuse_given(options, _OF_WEIGHTS, "--dry-run, which loads no weights")
        keys = () if options.no_key else find_keys(options.api_key_file)
        return serve(options, keys)
    except EngineError as error:
        return failed(error, options)


def check(options: argparse.Namespace) -> None:
    """Refuse options that conflict or are unsafe, before anything is loaded."""
    if bool(options.tls_cert) != bool(options.tls_key):
        raise BadInput("--tls-cert and --tls-key must be used together")
    for name in ("tls_cert", "tls_key"):
        if (file := getattr(options, name)) and not os.path.isfile(file):
            raise BadInput(f"--{name.replace('_', '-')}: {file} does not exist")
    if options.tls_cert:
        options.tls_password = password_of(options.tls_cert, options.tls_key)
    if options.no_key and options.api_key_file:
        raise BadInput("--no-key and --api-key-file cannot be combined")
    if options.uds:
        _refuse_given(options, dict.fromkeys(_ADDRESS), "--uds")
    for name, usual in _ADDRESS.items():
        if getattr(options, name) is None:
            setattr(options, name, usual)
    if options.no_key and not options.uds and not is_loopback(options.host) and not options.insecure:
        raise BadInput(
            f"--no-key on {options.host} lets anyone who can reach this machine use the engine; "
            "remove it, or add --insecure to allow this"
        )
    if options.insecure and not options.no_key:
        raise BadInput("--insecure has no effect without --no-key")
    for origin in options.cors:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise BadInput(f"--cors: {origin!r} is not an origin such as http://localhost:3000")
    if "*" in options.cors and options.no_key:
        raise BadInput("--cors '*' and --no-key would let any web page use the engine; name the origins")
    if not 0 <= options.port <= 65535:
        raise BadInput(f"--port must be from 0 to 65535, got {options.port}")
    check_replicas(options)
    if options.restart < 0:
        raise BadInput(f"--restart must be at least 0, got {options.restart}")
    for name in ("max_in_flight", "max_per_key"):
        if (count := getattr(options, name)) < 1:
            raise BadInput(f"--{name.replace('_', '-')} must be at least 1, got {count}")
    if options.max_priority < 0:
        raise BadInput(f"--max-priority must be at least 0, got {options.max_priority}")
    if not 1 <= options.max_body <= _LARGEST_BODY:
        raise BadInput(f"--max-body must be from 1 to {_LARGEST_BODY} MiB, got {options.max_body}")
    if not 0 <= options.drain <= _LONGEST_DRAIN:
        raise BadInput(f"--drain must be from 0 to {_LONGEST_DRAIN:g} seconds, got {options.drain:g}")
    if not _PREFIX.fullmatch(options.metrics_prefix):
        raise BadInput(
            f"--metrics-prefix takes letters, digits and _, digits not first; got {options.metrics_prefix!r}"
        )
    for adapter in options.adapter:
        if (name := adapter.partition("=")[0]) in served_names(options):
            raise BadInput(f"--adapter {adapter}: {name!r} is the model's name; choose another one")
    if options.rate is not None and not options.dry_run:
        raise BadInput("--rate requires --dry-run")
    if options.rate is not None and not 0 < options.rate <= 1e6:
        raise BadInput(f"--rate must be above 0 and at most 1e6 tokens/s, got {options.rate:g}")


def _refuse_given(options: argparse.Namespace, without_effect: Mapping[str, object], given: str) -> None:
    """Refuse options that have no effect with another one."""
    for name, usual in without_effect.items():
        if getattr(options, name) != usual:
            raise BadInput(f"--{name.replace('_', '-')} has no effect with {given}")


def serve(
    options: argparse.Namespace, keys: tuple[str, ...], callbacks: ServerCallbacks | None = None
) -> int:
    """Listen, load the model, and serve until a signal arrives."""
    from engine.server.http.binding import tcp_socket, unix_socket

    with ExitStack() as stack:
        uds = expanded(options.uds) if options.uds else None
        bound = unix_socket(uds) if uds else tcp_socket(options.host, options.port)
        stack.callback(bound.close)
        if uds:
            stack.callback(uds.unlink, missing_ok=True)
        return listen(options, keys, bound, uds, callbacks or _terminal())


def listen(
    options: argparse.Namespace,
    keys: tuple[str, ...],
    bound: socket.socket,
    uds: Path | None,
    callbacks: ServerCallbacks,
) -> int:
    _room_for_sockets()
    config = _server_config(options, keys, any_host=options.insecure or uds is not None)
    _log(options)
    engine_options = engine_config(options, warm=not options.no_warm, meet=options.meet)
    private_folder(callbacks.log.parent)
    if shown():
        say(f"{'starting' if options.dry_run else f'loading {config.name}'} ...")
    from engine.host.launching import NOTHING, Ahead, launching_now, let_threads_sleep
    from engine.main_memory import return_large_pieces
    from engine.server.startup import Startup

    let_threads_sleep()
    return_large_pieces()
    # A single engine's process is started first, so that it imports its modules while this one does.
    single = options.ray is None and options.prefill_gpus is None and options.replicas == 1
    ahead = NOTHING if options.dry_run else Ahead.of(engine_options)
    launch = launching_now(callbacks.log, ahead) if single else None
    with ExitStack() as while_it_runs:
        ready = while_it_runs.enter_context(interpreter.serving())
        startup = Startup(callbacks.progress)
        reported = replace(callbacks, phase=startup.phase, progress=startup.progress)
        starting = partial(engine, options, engine_options, reported, launch)
        threading.Thread(target=_start, args=(starting, startup), name="start", daemon=True).start()
        from engine.server.http.listen import server

        built = server(
            startup,
            config,
            certificate=Path(options.tls_cert) if options.tls_cert else None,
            key=Path(options.tls_key) if options.tls_key else None,
            password=options.tls_password if options.tls_cert else "",
            access_log=options.access_log,
        )
        built.keeps_signals = options.ray is not None  # Ray's handler of SIGTERM prints a stack trace
        if uds:
            built.leave_nothing = lambda: uds.unlink(missing_ok=True)

        def opened(done: "Future[None]") -> None:
            if done.exception():
                built.end()
            if built.should_exit:  # a signal came first
                return
            host = startup.host.result()
            while_it_runs.callback(watch(host, callbacks.died))
            if (scaling := _autoscaler(options, host)) is not None:
                while_it_runs.callback(scaling.close)
            ready()
            announce(options, keys, bound, uds)
            callbacks.ready()

        startup.opened.add_done_callback(opened)
        startup.host.add_done_callback(lambda done: built.end() if done.exception() else None)
        built.run([bound])
    return _close(startup, built)


def _server_config(options: argparse.Namespace, keys: tuple[str, ...], *, any_host: bool) -> "ServerConfig":
    from engine.server.config import ServerConfig

    name, *aliases = served_names(options)
    return ServerConfig(
        name=name,
        aliases=tuple(aliases),
        version=__version__,
        keys=keys,
        origins=tuple(options.cors),
        any_host=any_host,
        in_flight=options.max_in_flight,
        per_key=min(options.max_per_key, options.max_in_flight),
        max_priority=options.max_priority,
        log_prompts=options.log_prompts,
        max_body=options.max_body * 2**20,
        drain=options.drain,
        metrics_prefix=options.metrics_prefix,
    )


def _start(starting: Callable[[], "EngineClient"], startup: "Startup") -> None:
    """Start the engine while the server already answers /health."""
    from engine.api.commands import Warm

    try:
        host = starting()
        host.send(Warm()).result()
        startup.host.set_result(host)
    except BaseException as error:
        startup.host.set_exception(error)


def _close(startup: "Startup", built: "Server") -> int:
    """Close the engine. Raises why it, or the application, did not start."""
    if not startup.host.done():
        built.leave_nothing()
        failed = startup.opened.done()  # the application, which has been logged
        os._exit(1 if failed else 0)  # the engine's process ends with this one
    closing = threading.Thread(target=startup.host.result().close, name="minichat-close", daemon=True)
    closing.start()
    closing.join(_CLOSE_WITHIN)
    if closing.is_alive():
        built.leave_nothing()
        os._exit(1)  # a thread is inside a step, which would abort during interpreter shutdown
    if startup.opened.done():
        startup.opened.result()
    return 0


def served_names(options: argparse.Namespace) -> list[str]:
    """The model's names for clients. The default for a folder or a GGUF file is its last component."""
    path = expanded(options.model)
    usual = path.resolve().name if path.is_dir() else model_name(path) if is_gguf(path) else options.model
    return list(dict.fromkeys(options.served_name or [usual]))


def engine(
    options: argparse.Namespace, config: EngineConfig, callbacks: ServerCallbacks, launch: "Launch | None"
) -> "EngineClient":
    """The engine in its own process, so that serving clients does not slow steps; or a fleet of them."""
    from engine.fleet.local import shares, start_apart_fleet, start_fleet
    from engine.host.process import EngineProcess
    from engine.host.restarting import RestartingEngine

    def start(config: EngineConfig, log: Path) -> EngineProcess:
        rate = (options.rate or 30.0) if options.dry_run else None
        progress, phase = callbacks.progress, callbacks.phase
        return EngineProcess(config, log, progress=progress, phase=phase, dry_rate=rate, launch=launch)

    if options.ray is not None:
        return _ray_fleet(options, config, callbacks)
    if (prefill := options.prefill_gpus) is not None:
        parts = shares(config, prefill + options.decode_gpus)
        return start_apart_fleet(parts, prefill, start, callbacks.log, options.restart)
    if options.replicas > 1:
        parts = [config] * options.replicas if options.dry_run else shares(config, options.replicas)
        return start_fleet(parts, start, callbacks.log, options.restart)
    return RestartingEngine(
        lambda first: start(replace(config, first_request=first), callbacks.log), options.restart
    )


def _autoscaler(options: argparse.Namespace, fleet: "EngineClient") -> "Autoscaler | None":
    """Start the autoscaler, if the number of replicas may change."""
    if options.min_replicas is None or options.replicas == 1:
        return None
    from engine.fleet.scaling import Autoscaler

    scaling = Autoscaler(fleet, options.min_replicas, options.target_requests or REQUESTS_A_REPLICA)
    scaling.start()
    return scaling


def _ray_fleet(
    options: argparse.Namespace, config: EngineConfig, callbacks: ServerCallbacks
) -> "EngineClient":
    """Replicas on the machines of a Ray cluster. Ray ends its own processes when this one exits."""
    from engine.fleet.local import start_fleet
    from engine.fleet.ray_cluster.cluster import RayCluster
    from engine.fleet.ray_cluster.spread import place
    from engine.host.process import EngineProcess

    cluster = RayCluster(options.ray, options.replicas)
    rate = (options.rate or 30.0) if options.dry_run else None
    config = replace(config, device="cpu") if options.dry_run else config

    def start(config: EngineConfig, log: Path) -> EngineProcess:
        config, launch = place(cluster, config)
        progress, phase = callbacks.progress, callbacks.phase
        return EngineProcess(config, log, progress=progress, phase=phase, dry_rate=rate, launch=launch)

    parts = cluster.shares(config, options.replicas)
    return start_fleet(parts, start, callbacks.log, options.restart)


def announce(
    options: argparse.Namespace, keys: tuple[str, ...], bound: socket.socket, uds: Path | None
) -> None:
    """Print the address and the key. The key is printed to a terminal only, never to a log."""
    scheme = "https" if options.tls_cert else "http"
    if uds:
        place = f"the socket {uds}"
    else:
        host, port = bound.getsockname()[:2]
        place = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/v1"
    say(f"serving {', '.join(served_names(options))} at {place}; press Ctrl+C to stop")
    if not keys:
        say("no key is required: anyone who can reach it can use it")
    elif options.api_key_file:
        say(f"accepting {plural(len(keys), 'key')} from {options.api_key_file}")
    else:
        shown = f": {keys[0]}" if sys.stderr.isatty() else ""
        say(f"the key is in {locate().server_key}{shown}")


def _room_for_sockets() -> None:
    """Raise the limit of open files: the usual 1024 are too few for many clients."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def _terminal() -> ServerCallbacks:
    """Report to the terminal; `announce` has already printed that the server is ready."""
    return ServerCallbacks(
        show_progress,
        ready=lambda: None,
        log=locate().engine_log,
        died=lambda why: say(f"{why}; requests are refused until the server is restarted"),
    )


def say(line: str) -> None:
    print(f"minichat: {line}", file=sys.stderr, flush=True)


def _log(options: argparse.Namespace) -> None:
    """Configure logging. Logs contain no prompts, replies or keys unless requested."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="minichat: %(message)s")
    if options.access_log:
        logging.getLogger("uvicorn.access").setLevel(logging.INFO)
    if options.log_prompts:
        logging.getLogger("minichat.server").setLevel(logging.INFO)
