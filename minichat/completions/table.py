"""The command line as data, read from its parser: all completion scripts are generated from it."""

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from engine.api.cache_spec import KV_SCHEMES
from engine.api.params import SPECULATION
from engine.attention import registry as attention
from engine.models.find import BUILT_IN
from engine.quant import registry as quantization
from engine.scheduling import policy
from minichat.cli import COMMANDS, parser

DEFAULT = "chat"  # the command if none is given


@dataclass(frozen=True, slots=True)
class Value:
    """The completions of a word; without any, the word is free text."""

    words: tuple[str, ...] = ()
    paths: Literal["", "files", "folders"] = ""
    several: bool = False  # several words, separated by commas


@dataclass(frozen=True, slots=True)
class Option:
    names: tuple[str, ...]
    help: str
    value: Value | None = None  # None: a flag
    called: str = ""  # the value's name in the help
    again: bool = False  # may be given several times


@dataclass(frozen=True, slots=True)
class Subcommand:
    name: str
    help: str
    options: tuple[Option, ...]
    called: str = ""  # the positional argument's name, if there is one
    word: Value = Value()


@dataclass(frozen=True, slots=True)
class Table:
    commands: tuple[Subcommand, ...]
    alone: tuple[Option, ...]  # options that replace a command

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(command.name for command in self.commands)


def table() -> Table:
    top = parser()
    choices = next(each.choices for each in top._actions if isinstance(each, argparse._SubParsersAction))
    commands = tuple(_command(name, line, choices[name]) for name, line in COMMANDS.items())
    return Table(commands, tuple(option for option in _options(top) if "--help" not in option.names))


def filled(script: str, **parts: Iterable[str]) -> str:
    """Fill in the parts: each line with a name between two @ is replaced by that part's lines."""
    for name, lines in parts.items():
        script = script.replace(f"@{name}@", "\n".join(lines))
    return script


def _command(name: str, help: str, command: argparse.ArgumentParser) -> Subcommand:
    options = tuple(_options(command))
    for action in command._actions:
        if not action.option_strings:
            return Subcommand(name, help, options, _called(action), _value(action))
    return Subcommand(name, help, options)


def _options(command: argparse.ArgumentParser) -> Iterator[Option]:
    for action in command._actions:
        if action.option_strings and action.help != argparse.SUPPRESS:
            takes = action.nargs != 0
            yield Option(
                tuple(action.option_strings),
                (action.help or "") % {**vars(action), "prog": command.prog},
                _value(action) if takes else None,
                _called(action) if takes else "",
                again=isinstance(action, argparse._AppendAction),
            )


def _called(action: argparse.Action) -> str:
    """The name of its value in the help."""
    return str(action.metavar or action.dest)


def _value(action: argparse.Action) -> Value:
    """The completions, from its choices or else from its name."""
    if action.choices is not None:
        return Value(tuple(map(str, action.choices)))
    if str(action.metavar).startswith("FILE"):
        return Value(paths="files")
    match action.dest:
        case "model":
            return Value((BUILT_IN,), "files")
        case "draft":
            return Value(("mtp",), "files")
        case "folder":
            return Value(paths="folders")
        case "kv_disk":
            return Value(("auto", "off"), "folders")
        case "device":
            return Value(("auto", "cpu", "cuda"))
        case "attention":
            return Value(("auto", *attention.names()))
        case "policy":
            return Value(tuple(policy.names()))
        case "quantization":
            return Value(tuple(quantization.names()))
        case "schemes":
            caches = (f"kv-{each}" for each in KV_SCHEMES if each != "none")
            return Value((*quantization.names(), *caches), several=True)
        case "speculate":
            return Value(SPECULATION)
    return Value()
