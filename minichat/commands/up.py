"""`minichat up`: start an engine that runs without a screen, and open the screen on it."""

import argparse
import asyncio
import shlex
import sys
from collections.abc import Sequence
from functools import partial

from engine.api.errors import BadInput, EngineError
from engine.api.places import AdapterPlace, expanded
from minichat.cli import parser
from minichat.commands.attach import attach_to, check_terminal
from minichat.commands.options import SAMPLING, engine_config, failed, show_progress
from minichat.commands.serve import check
from minichat.commands.tui import blaming, check_policy, given_of, lines_of, policy_fault, report, settle
from minichat.doing import doing
from minichat.models.catalog import identity
from minichat.models.present import PresentOptions, option, present_options
from minichat.models.residents import Resident, Waiting, home_of
from minichat.settings import Loaded, Problem, load
from minichat.shell.again import typed, words_of
from minichat.shell.paths import locate


def run(options: argparse.Namespace) -> int:
    paths = locate()
    try:
        if options.no_screen:
            _refuse_screen_options(options)
        else:
            check_terminal("up (without --no-screen)")
        resident = Resident(home_of(paths), options.name)
        resident.check_record()
        asked = typed(options)
        _from_here(options)
        given = given_of(options)
        check_policy(options, given)
        present = present_options(resident, _tell)
        _fits(resident, options, present)
        loaded = load(paths.settings)
        if options.no_screen:
            report(loaded, options, given)
        settle(options, loaded.settings)
        options.model = identity(options.model)
        engine_config(options)  # validate before anything starts; so does `check` below
        words = serve_words(options)
        unlike = _unlike(words, loaded, given, present)
        loaded.problems.extend(unlike)  # the screen shows them
        check(parser().parse_args(["serve", *words]))
        waiting = Waiting(resident, words, [*lines_of(loaded, given)])
        if died := resident.died():
            _tell(f"{died}; starting a replacement")
        if not options.no_screen:
            return attach_to(asked, paths, waiting, options.model, blaming(options, loaded, given), loaded)
        for each in unlike:
            _tell(str(each))
        if present is not None and (converted := present.conversion):
            _tell(f"the engine {resident.name} is being converted {converted}")
        _wait(waiting)
    except EngineError as error:
        return failed(error, options)
    _tell(resident.goes_on)
    return 0


def _tell(line: str) -> None:
    print(f"minichat: {line}", file=sys.stderr)


def _wait(waiting: Waiting) -> None:
    """Wait for the engine. It is detached, so Ctrl+C ends only the waiting."""
    try:
        what = f"starting {waiting.resident.name}"
        with doing(what) as say:
            asyncio.run(waiting.ensure(partial(show_progress, then=partial(say, what))))
    except KeyboardInterrupt:
        resident = waiting.resident
        if resident.running():
            _tell(f"{resident.name} keeps starting; stop it: {resident.command('down')}")
        raise


def _from_here(options: argparse.Namespace) -> None:
    """Make the names of folders absolute: the engine runs in another folder than the user."""
    places = [AdapterPlace.parse(each) for each in options.adapter]
    options.adapter = [f"{place.name}={identity(place.path)}" for place in places]
    if options.draft is not None:
        options.draft = identity(options.draft)
    if options.kv_disk is not None and ":" in options.kv_disk:
        folder, _, size = options.kv_disk.rpartition(":")
        options.kv_disk = f"{expanded(folder).absolute()}:{size}" if folder else options.kv_disk


def serve_words(options: argparse.Namespace) -> list[str]:
    """The options that `serve` also accepts: the model and its engine."""
    known = vars(parser().parse_args(["serve"]))
    given = {name: value for name, value in vars(options).items() if name in known}
    return words_of(argparse.Namespace(**given | {"command": "serve"}))[1:]


def _refuse_screen_options(options: argparse.Namespace) -> None:
    """Options of the screen and of its chats have no effect without one."""
    for name in ("system", "ascii", *SAMPLING):
        value = getattr(options, name, None)
        if value is not None and value is not False:
            raise BadInput(f"--{name.replace('_', '-')} has no effect with --no-screen")


def _fits(resident: Resident, options: argparse.Namespace, present: PresentOptions | None) -> None:
    """Refuse if the running engine has another model than the requested one, or not the requested options."""
    record = resident.record
    if record is None or not resident.running() or resident.died():
        return
    ways = f"stop it with {resident.command('down')}, or start another one with --name"
    if options.model is not None and identity(options.model) != record.model:
        raise BadInput(f"the engine {resident.name} runs {record.model}; {ways}")
    if record.dry_run and not options.dry_run:
        raise BadInput(f"the engine {resident.name} runs with --dry-run: its replies are invented; {ways}")
    if present is None:
        return
    plain = argparse.Namespace(**vars(options) | {"model": None, "rate": None})
    for word in serve_words(plain):
        name = _name(word)
        if not present.has(name, word):
            now = " ".join(f"{option(name)}={value}" for value in present.values(name))
            runs = f"runs with {now}, not {word}" if now else f"runs without {word}"
            if name == "quantization" and (converted := present.conversion):
                runs = f"is being converted {converted}, so it will run without {word}"
            raise BadInput(f"the engine {resident.name} {runs}; {ways}")


def _name(word: str) -> str:
    return word.partition("=")[0].removeprefix("--").replace("-", "_")


def _unlike(
    words: Sequence[str], loaded: Loaded, given: set[str], present: PresentOptions | None
) -> list[Problem]:
    """The settings that the running engine does not have now. It is used all the same."""
    if present is None:
        return []
    wants = dict(word.split("=", 1) for word in words if "=" in word)
    resident = present.resident
    problems, lines = [], lines_of(loaded, given)
    settings = {*lines, *present.configured, "model"}
    typed = [each for each in present.started if each not in words and _name(each) not in settings]
    ways = f"to change that: {resident.command('down')}, then {shlex.join([*resident.up.split(), *typed])}"
    removed = [name for name in present.configured if name not in lines and name not in given]
    places = [*sorted(lines.items(), key=lambda each: each[1]), *((name, 0) for name in removed)]
    for name, line in places:
        new = wants.get(option(name))
        old = next(iter(present.values(name)), None)
        if old == new:
            continue
        runs = f"runs with {old}, not {new}" if old is not None else "runs without it"
        if not line:
            runs = f"still runs with {old}, which is no longer set"
        elif name == "quantization" and (converted := present.conversion):
            runs = f"is being converted {converted}, not to {new}"
        says = f"the engine {resident.name} {runs}; {ways}"
        if name == "policy" and new and (fault := policy_fault(new)):
            says = fault
        problems.append(Problem(loaded.document.file, line, f"engine.{name}", says))
    return problems
