"""Convert command line options to engine parameters, and errors to exit codes."""

import argparse
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from engine.api.config import EngineConfig, is_amount, is_factor
from engine.api.errors import BadInput, BadParams, EngineError, ModelNotFound
from engine.api.params import SamplingParams
from engine.api.places import AdapterPlace, MeetingPlace
from minichat.doing import ERASE, doing, shown
from minichat.shell.disk_room import disk_room
from minichat.shell.interpreter import loading
from minichat.shell.paths import locate
from minichat.shell.streams import harmless

if TYPE_CHECKING:
    from engine.host.thread import EngineThread

SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "seed",
    "max_tokens",
    "stop",
    "speculate",
    "beams",
    "length_penalty",
    "early_stopping",
    "n",
    "best_of",
)


_MOST_ENGINES = 64
# Names of fields in an error of the engine, at its beginning and later. Other words may be plain English.
_FIELD = re.compile(r"\w+(?=: | '| must | is | cannot | needs )")
_SHOWN = r"(?:beams|n)(?= \(\d)|speculate(?= \()"  # with their values
_OTHERS = re.compile(rf"(?<![\w'/.-])(?:[a-z]+_[a-z]+|tp|pp|{_SHOWN})(?![\w'/=-]|\.\w)")
_OPTION = {"kv_scheme": "kv", "adapters": "adapter", "latency_target": "target_ms"}  # of these fields
_CHANCES = ("top_p", "top_k", "min_p", "seed", "n", "best_of")  # without effect if greedy


def refuse_chances(options: argparse.Namespace) -> None:
    """Refuse options of sampling with a temperature of 0. A beam search may return several replies."""
    if options.temperature != 0 or (getattr(options, "beams", None) or 1) > 1:
        return
    for name in _CHANCES:
        if getattr(options, name, None) is not None:
            raise BadInput(f"--{name.replace('_', '-')} has no effect with --temperature 0")


def sampling(options: argparse.Namespace) -> SamplingParams:
    refuse_chances(options)
    given = {name: value for name in SAMPLING if (value := getattr(options, name, None)) is not None}
    usual: SamplingParams = getattr(options, "usual", SamplingParams(temperature=0.7))  # of the settings
    return usual.changed(**given)


def refuse_no_tokens(params: SamplingParams) -> None:
    """Refuse a reply without tokens where a reply is all there is to see."""
    if params.max_tokens == 0:
        raise BadParams("max_tokens", "must be a whole number from 1; with 0 there is nothing to print")


def reply_adapter(options: argparse.Namespace) -> str:
    """Return the name of the adapter that computes a command's replies; "" for none."""
    if len(options.adapter) > 1:
        raise BadInput("--adapter: a reply is computed with one adapter; give one")
    return AdapterPlace.parse(options.adapter[0]).name if options.adapter else ""


def engine_config(options: argparse.Namespace, **more: object) -> EngineConfig:
    if options.kv_sinks is not None:
        budget = "budgets" if hasattr(options, "budgets") else "kv_budget"  # quality compares several
        if options.kv_window is None and getattr(options, budget) is None:
            raise BadInput(f"--kv-sinks requires --kv-window or --{budget.replace('_', '-')}")
        more["kv_sinks"] = options.kv_sinks
    if options.kv_eviction is not None:
        if options.kv_budget is None:
            raise BadInput("--kv-eviction requires --kv-budget")
        more["kv_eviction"] = options.kv_eviction
    if options.target_ms is not None:
        if options.policy in ("fcfs", "priority"):
            raise BadInput(f"--target-ms has no effect with --policy {options.policy}; use --policy latency")
        if not is_amount(options.target_ms / 1000):
            raise BadInput(f"--target-ms must be at least 0, got {options.target_ms:g}")
        more["latency_target"] = options.target_ms / 1000
    if options.max_slowdown is not None and not is_factor(options.max_slowdown):
        raise BadInput(f"--max-slowdown must be at least 1, got {options.max_slowdown:g}")
    return EngineConfig(
        model=options.model,
        device=options.device,
        tp=options.tp,
        pp=options.pp,
        dtype=options.dtype,
        attention=options.attention,
        policy=options.policy,
        max_slowdown=options.max_slowdown,
        quantization=options.quantization,
        blocks=options.blocks,
        kv_host=options.kv_host,
        max_context=options.max_context,
        kv_disk=disk_room(options.kv_disk, locate().cache),
        draft=options.draft,
        adapters=tuple(options.adapter),
        kv_scheme=options.kv,
        kv_window=options.kv_window,
        kv_budget=options.kv_budget,
        dummy_weights=options.dummy_weights,
        **more,  # type: ignore[arg-type]
    )


class _OneLine(logging.Formatter):
    """Prints warnings of the engine without tracebacks."""

    def __init__(self, before: str = "") -> None:
        super().__init__()
        self._before = before

    def format(self, record: logging.LogRecord) -> str:
        return f"{self._before}minichat: {record.getMessage()}"


def show_progress(done: int, total: int, then: Callable[[], None] | None = None) -> None:
    """Show the progress of loading a large model on a terminal. `then` shows what follows, or nothing is."""
    if shown() and total > 200_000_000:
        if done >= total and then is not None:
            then()
            return
        meter = f"loading {done / 1e9:.2f} of {total / 1e9:.2f} GB" if done < total else ""
        print(f"{ERASE}{meter}", end="", file=sys.stderr, flush=True)


@contextmanager
def running(config: EngineConfig) -> Iterator["EngineThread"]:
    """Run an engine on a thread. On a terminal, standard error shows that it is loading."""
    warnings = logging.StreamHandler()
    warnings.setFormatter(_OneLine(ERASE if shown() else ""))
    logging.getLogger("minichat").addHandler(warnings)
    try:
        what = f"loading {Path(config.model).name or config.model}"
        with doing(what) as say, loading():
            from engine.early import import_torch
            from engine.host.thread import STOPPED, EngineThread
            from engine.start import start

            warnings.addFilter(lambda record: record.msg != STOPPED)  # the commands print the reason
            progress = partial(show_progress, then=partial(say, what))
            host = EngineThread(start(config, progress, found=lambda folder: import_torch()))
        warnings.setFormatter(_OneLine())
        try:
            yield host
        finally:
            host.close()
    finally:
        logging.getLogger("minichat").removeHandler(warnings)


def opening(host: "EngineThread", params: SamplingParams) -> str:
    """What the template has already written of a reply: <think>. A grammar leaves no room for reasoning."""
    from engine.text.reasoning import OPEN

    opens = params.grammar is None and host.has_template and host.opens_thinking()
    return f"{OPEN}\n" if opens else ""


def completes(host: "EngineThread", options: argparse.Namespace) -> bool:
    """Whether the model has no chat template, so that it completes the text. Say so."""
    if host.has_template:
        return False
    idle = "; --system has no effect" if options.system else ""
    print(f"minichat: {options.model} has no chat template; completing the text{idle}", file=sys.stderr)
    return True


def picture_file(name: str | None) -> Path | None:
    """The file of --plot, checked before the measurement, which takes minutes."""
    if name is None:
        return None
    path = Path(name)
    if path.suffix != ".svg":
        raise BadInput(f"--plot {name} must end in .svg")
    if not os.path.isdir(path.absolute().parent):
        raise BadInput(f"--plot {name}: the folder {path.absolute().parent} does not exist")
    return path


def failed(error: EngineError, options: argparse.Namespace | None = None) -> int:
    """Print the error, with the line of the settings or the option that it is about. Return its exit code."""
    text = str(error)
    places = getattr(options, "places", {})
    if options is not None and (name := at_fault(error, options, places)):
        text = places[name] + text.removeprefix(f"{name}: ")
    elif options is not None:
        text = with_options(text, options)
    print(f"minichat: {harmless(text, sys.stderr)}", file=sys.stderr)
    return 2 if isinstance(error, BadInput) else 1


def with_options(text: str, options: argparse.Namespace) -> str:
    """An error of the engine, with the command's options in place of its fields."""

    def option(found: re.Match[str]) -> str:
        name = _OPTION.get(found[0], found[0])
        return f"--{name.replace('_', '-')}" if hasattr(options, name) else found[0]

    first = _FIELD.match(text)
    if first and getattr(options, _OPTION.get(first[0], first[0]), None) is not None:
        return option(first) + _OTHERS.sub(option, text[first.end() :])
    return _OTHERS.sub(option, text)


def at_fault(error: EngineError, options: argparse.Namespace, names: Iterable[str]) -> str:
    """The one of these options that the error is about; empty if none is."""
    text = str(error)
    for name in names:
        value = getattr(options, name)
        named = isinstance(value, str) and repr(value) in text
        missing = name == "model" and isinstance(error, ModelNotFound) and text.startswith(f"{value} ")
        if text.startswith(f"{name}: ") or named or missing:
            return name
    return ""


def check_replicas(options: argparse.Namespace) -> None:
    """Refuse options for several engines that conflict."""
    if not 1 <= options.replicas <= _MOST_ENGINES:
        raise BadInput(f"--replicas must be from 1 to {_MOST_ENGINES}, got {options.replicas}")
    _check_scaling(options)
    if options.meet is not None and (options.replicas > 1 or options.ray is not None):
        raise BadInput("--meet cannot be combined with --replicas or --ray; it is the address of one engine")
    if options.prefill_gpus is not None or options.decode_gpus is not None:
        _check_apart(options)
    if options.meet is not None:
        MeetingPlace.parse(options.meet).secret()


def _check_scaling(options: argparse.Namespace) -> None:
    least, most, target = options.min_replicas, options.replicas, options.target_requests
    if least is None and target is not None:
        raise BadInput("--target-requests has no effect without --min-replicas")
    if least is not None and not 1 <= least <= most:
        raise BadInput(f"--min-replicas must be from 1 to --replicas, which is {most}; got {least}")
    if target is not None and target < 1:
        raise BadInput(f"--target-requests must be at least 1, got {target}")


def _check_apart(options: argparse.Namespace) -> None:
    prompts, replies = options.prefill_gpus, options.decode_gpus
    if prompts is None or replies is None:
        raise BadInput("--prefill-gpus and --decode-gpus must be used together")
    if prompts < 1 or replies < 1 or prompts + replies > _MOST_ENGINES:
        raise BadInput(
            f"--prefill-gpus and --decode-gpus must be at least 1, and {_MOST_ENGINES} together at most; "
            f"got {prompts} and {replies}"
        )
    why = {
        "replicas": "which counts the engines by itself",
        "ray": "whose engines share the memory of one machine",
        "min_replicas": "whose engines all run",
        "meet": "whose engines run on this machine",
        "tp": "whose engines run on one device each",
        "pp": "whose engines run on one device each",
        "kv_window": "which sends whole prefixes",
        "kv_budget": "which sends whole prefixes",
        "dry_run": "since a dry run has no blocks to send",
    }
    usual: dict[str, object] = {"replicas": 1, "tp": 1, "pp": 1, "dry_run": False}
    for name, reason in why.items():
        if getattr(options, name) != usual.get(name):
            option = f"--{name.replace('_', '-')}"
            raise BadInput(f"{option} cannot be combined with --prefill-gpus, {reason}")
