"""`minichat`: the screen. Nothing heavy is imported before its first frame."""

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import replace

from engine.api.config import EngineConfig
from engine.api.errors import BadInput, EngineError
from engine.api.places import DiskRoom
from minichat.chats.model import Message
from minichat.clients.local import LocalBackend, in_process, on_thread
from minichat.commands.options import at_fault, engine_config, failed
from minichat.commands.screen import show
from minichat.plural import plural
from minichat.session.attachments import CannotAttach, attach, missing
from minichat.settings import Loaded, Settings, load
from minichat.shell.again import note_typed, typed, words_of
from minichat.shell.first import First, first_message, is_piped, keys_from_terminal, read_pipe
from minichat.shell.paths import Paths, locate
from minichat.start import Blame

_ENGINE = (
    *("model", "device", "dtype", "attention", "policy", "runs_in", "blocks", "max_context"),
    *("kv_host", "quantization", "kv", "kv_window", "kv_budget", "tp", "pp"),
)
_STDIN = "-"  # as a word: the piped input, which is attached anyway
_FORMS = {"quantization": "quantization", "kv": "kv_scheme"}  # options that F4 changes, and their fields


def run(options: argparse.Namespace) -> int:
    paths = locate()
    loaded = load(paths.settings)
    asked = typed(options)
    converted = {name: now for name in _FORMS if (now := getattr(options, name)) != getattr(asked, name)}
    vars(options).update((name, getattr(asked, name)) for name in converted)
    given = given_of(options)
    try:
        _refuse_screen_options(options)
        check_policy(options, given)
        settle(options, loaded.settings)
        first = _first(options)
    except CannotAttach as error:
        return failed(BadInput(str(error)))
    except BadInput as error:
        return failed(error, options)
    if first is None:
        from minichat.commands import chat

        settle_plain(options, loaded, given)
        return chat.run(options)
    if not _on_screen(options):
        settle_plain(options, loaded, given)
        return _answered(options, first)
    if options.kv_disk is None and options.kv_budget is None:  # other commands keep nothing unless asked to
        options.kv_disk = loaded.settings.engine.kv_disk
    try:
        config = engine_config(options)
    except EngineError as error:
        return failed(error, options)

    first = replace(first, notice=first.notice or _beside(paths))
    launch = in_process(paths.engine_log) if options.runs_in == "process" else on_thread
    forms = {_FORMS[name]: form for name, form in converted.items()}
    backend = LocalBackend(config, launch, DiskRoom.parse(config.kv_disk or f"{paths.cache}:1"), forms)

    def again(model: str) -> list[str]:
        from_file = load(paths.settings).settings.engine.model
        note_typed({name: getattr(asked, name) for name in _FORMS})
        return restart_words(asked, config, backend.config_of(model), from_file)

    blame = blaming(options, loaded, given)
    return show(options, paths, loaded, lambda: backend, again, model=config.model, first=first, blame=blame)


def restart_words(
    asked: argparse.Namespace, given: EngineConfig, now: EngineConfig, from_file: str
) -> list[str]:
    """The options of a restart: those typed, and what has changed since the start.

    That is the model, and the form that weights and cache were converted to. The new program reads all
    else from the settings. `from_file`: the model in them.
    """
    changes: dict[str, object] = {}
    if now.model != given.model:
        own = {"adapter": list(now.adapters), "dummy_weights": now.dummy_weights}
        changes |= {"model": now.model} | own
    if now.model == changes.get("model", asked.model or from_file):  # else the new program loads another
        forms = ((name, getattr(given, each), getattr(now, each)) for name, each in _FORMS.items())
        changes |= {name: after for name, before, after in forms if after != before}
    return words_of(asked, **changes)


def _refuse_screen_options(options: argparse.Namespace) -> None:
    """Options of the screen have no effect with --plain."""
    for name, value in (("engine", options.runs_in), ("ascii", options.ascii)):
        if options.plain and value:
            raise BadInput(f"--{name} has no effect with --plain")


def _beside(paths: Paths) -> str:
    """The engines that run in the background, which may still write replies of this screen's chats."""
    if not any(paths.engines.glob("*/*.lock")):
        return ""
    from minichat.models.residents import home_of, residents

    running = [each for each in residents(home_of(paths)) if each.running() and not each.died()]
    if not running:
        return ""
    ways = ", ".join(each.command("attach") for each in running)
    return (
        f"{plural(len(running), 'engine')} {'runs' if len(running) == 1 else 'run'} in the background: {ways}"
    )


def _on_screen(options: argparse.Namespace) -> bool:
    """Whether there is a terminal for output and one for keys."""
    if _by_lines(options):
        return False
    return sys.stdin.isatty() or keys_from_terminal()


def _by_lines(options: argparse.Namespace) -> bool:
    """Whether the output is plain: not a terminal, or one without cursor control."""
    return options.plain or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb"


def _first(options: argparse.Namespace) -> First | None:
    """The first message of the chat; None if lines are answered one by one without a screen."""
    *words, last = options.text or [""]
    if last != _STDIN:  # elsewhere it may be a minus
        words = options.text
    elif not is_piped():
        raise BadInput("- stands for the piped input, but nothing is piped")
    if _by_lines(options) and not words:
        return None
    return first_message(words, read_pipe())


def _answered(options: argparse.Namespace, first: First) -> int:
    """Answer a question on standard output, like generate. On a terminal, the chat goes on, line by line."""
    from minichat.commands import chat, generate

    if first.notice:
        return failed(BadInput(first.notice))
    try:
        files = attach(first.text, first.piped)
    except CannotAttach as error:
        return failed(BadInput(str(error)))
    for each in missing(first.text, first.piped):
        print(f"minichat: {each.sent_without}", file=sys.stderr)
    message = Message(0, "user", first.text, attachments=files)
    if first.send and sys.stdin.isatty() and sys.stdout.isatty():
        return chat.run(options, message)
    options.text = [message.whole]
    options.raw = options.json = options.verbose = False
    # options of generate only
    options.json_schema = options.regex = options.choice = None
    options.beams = options.length_penalty = options.early_stopping = options.deadline_ms = None
    return generate.run(options)


def given_of(options: argparse.Namespace) -> set[str]:
    """The engine's options on the command line. The others come from the settings."""
    return {name for name in _ENGINE if getattr(options, name, None) is not None}


def report(loaded: Loaded, options: argparse.Namespace, given: set[str]) -> None:
    """Print what is wrong with the settings, where no screen shows it. Later errors name their lines."""
    for each in loaded.problems:
        print(f"minichat: {each}", file=sys.stderr)
    file, lines = loaded.document.file, lines_of(loaded, given)
    options.places = {name: f"{file}:{line}: engine.{name}: " for name, line in lines.items()}


def blaming(options: argparse.Namespace, loaded: Loaded, given: set[str]) -> Callable[[EngineError], Blame]:
    """How the screen finds the line of the settings, or the option, that an error is about."""
    lines = lines_of(loaded, given)
    typed = {*given, "draft"} - {"model"}  # the screen itself offers other models

    def blame(error: EngineError) -> Blame:
        if name := at_fault(error, options, lines):
            return Blame(name, place=f"{loaded.document.file.name}:{lines[name]}")
        if name := at_fault(error, options, typed):
            return Blame(name, option=f"--{name.replace('_', '-')} {getattr(options, name)}")
        return Blame()

    return blame


def check_policy(options: argparse.Namespace, given: set[str]) -> None:
    """Refuse an unknown policy that was typed: no screen could start with it. A setting can be corrected."""
    if "policy" in given and (problem := policy_fault(options.policy)):
        raise BadInput(problem)


def policy_fault(name: str) -> str | None:
    """Why the policy cannot be used; None if it can."""
    if name == "fcfs":  # it needs no imports to be known
        return None
    from engine.scheduling.policy import why_not

    return why_not(name)


def lines_of(loaded: Loaded, given: set[str]) -> dict[str, int]:
    """The lines of the engine's settings that no option overrides."""
    lines = loaded.document.lines
    return {
        name: lines[f"engine.{name}"] for name in _ENGINE if name not in given and f"engine.{name}" in lines
    }


def settle_plain(options: argparse.Namespace, loaded: Loaded, given: set[str]) -> None:
    """What the screen does with the rest of the settings: report problems, and sample as they say."""
    report(loaded, options, given)
    options.usual = loaded.settings.sampling.changed(n=1)  # there is no place for other replies


def settle(options: argparse.Namespace, settings: Settings) -> None:
    """Fill options missing on the command line from the settings."""
    given = options.kv_window, options.kv_budget
    for name in _ENGINE:
        if getattr(options, name, "") is None:  # not every command has all of them
            setattr(options, name, getattr(settings.engine, name))
    if given != (None, None):  # one on the command line replaces the other in the settings
        options.kv_window, options.kv_budget = given
    bounded = options.kv_window is not None or options.kv_budget is not None
    if bounded and options.kv_sinks is None:  # it has no effect without a window or a budget
        options.kv_sinks = settings.engine.kv_sinks
    if options.kv_budget is not None and options.kv_eviction is None:
        options.kv_eviction = settings.engine.kv_eviction
    if options.system is None:
        options.system = settings.chat.system  # also used without a screen
