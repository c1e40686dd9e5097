"""What may stand on the command line, read off its parser: the scripts of all shells are made of it."""

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from engine.api.config import KV_SCHEMES
from engine.api.params import SPECULATION
from engine.attention import registry as attention
from engine.models.find import BUILT_IN
from engine.quant import registry as quantization
from engine.scheduling import policy
from minichat.cli import COMMANDS, parser

DEFAULT = "chat"  # what is meant where no command is named


@dataclass(frozen=True, slots=True)
class Value:
    """What a word may be; without any of it, whatever a person types."""

    words: tuple[str, ...] = ()
    paths: Literal["", "files", "folders"] = ""
    several: bool = False  # of the words, with commas between


@dataclass(frozen=True, slots=True)
class Option:
    names: tuple[str, ...]
    help: str
    value: Value | None = None  # none: it is a switch
    called: str = ""  # its value, as the help has it
    again: bool = False  # it may be given several times


@dataclass(frozen=True, slots=True)
class Subcommand:
    name: str
    help: str
    options: tuple[Option, ...]
    called: str = ""  # what stands there without an option, if anything does
    word: Value = Value()


@dataclass(frozen=True, slots=True)
class Table:
    commands: tuple[Subcommand, ...]
    alone: tuple[Option, ...]  # that stand in the place of a command

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(command.name for command in self.commands)


def table() -> Table:
    top = parser()
    choices = next(each.choices for each in top._actions if isinstance(each, argparse._SubParsersAction))
    commands = tuple(_command(name, line, choices[name]) for name, line in COMMANDS.items())
    return Table(commands, tuple(option for option in _options(top) if "--help" not in option.names))


def filled(script: str, **parts: Iterable[str]) -> str:
    """With the lines of each part where its name stands between two @."""
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
        if action.option_strings:
            takes = action.nargs != 0
            yield Option(
                tuple(action.option_strings),
                (action.help or "") % {**vars(action), "prog": command.prog},
                _value(action) if takes else None,
                _called(action) if takes else "",
                again=isinstance(action, argparse._AppendAction),
            )


def _called(action: argparse.Action) -> str:
    """Its value, as the help has it."""
    return str(action.metavar or action.dest)


def _value(action: argparse.Action) -> Value:
    """By its choices; else by what it is, as its name tells."""
    if action.choices is not None:
        return Value(tuple(map(str, action.choices)))
    if str(action.metavar).startswith("FILE"):
        return Value(paths="files")
    match action.dest:
        case "model":
            return Value((BUILT_IN,), "folders")
        case "draft":
            return Value(paths="folders")
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
