"""What may be asked of an engine: a class for each verb, with who may send it and what the engine answers.

A new verb is a class here and a handler in engine/serving/handlers.py; every way to an engine then knows it.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, get_args, get_origin

from engine.api.codec import Codec, DecodeError, codec, field_types, record
from engine.api.errors import BadInput, BadWire, UnknownCommand
from engine.api.params import SamplingParams
from engine.api.snapshot import Snapshot, Speeds
from engine.api.wire import (
    VERSION,
    changes_from_json,
    changes_to_json,
    check_version,
    params_from_json,
    params_to_json,
)

T = TypeVar("T")
_MAX_NAME = 100  # characters of a scheme or a switch
_MAX_ID = 2**63


class Sender(IntEnum):
    """Who sends a command. A higher one may send less."""

    LIBRARY = 0  # code in the engine's own process
    SCREEN = 1  # the program that owns the engine, also from another process
    KEY = 2  # a client with an API key, over HTTP; a screen elsewhere is one


_PARAMS = Codec(params_to_json, params_from_json)
_CHANGES = Codec(changes_to_json, changes_from_json)
_SOME_PARAMS = Codec(
    lambda params: None if params is None else params_to_json(params),
    lambda value: None if value is None else params_from_json(value),
)
_registry: dict[str, "type[Command[Any]]"] = {}


class Command(Generic[T]):
    """The base of all verbs. `T` is what the engine answers."""

    __slots__ = ()
    sender: ClassVar[Sender] = Sender.LIBRARY  # not from outside, unless a class allows it
    forms: ClassVar[Mapping[str, Codec]] = {}  # of fields whose form does not follow from their types
    verb: ClassVar[str]  # its name on the wire

    def __init_subclass__(cls, *, abstract: bool = False) -> None:
        super().__init_subclass__()
        if abstract:
            return
        cls.verb = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        known = _registry.setdefault(cls.verb, cls)
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(f"there is a command {cls.verb!r} already, in {known.__module__}")
        _registry[cls.verb] = cls  # slots make a dataclass anew, under the same name


class Begun(NamedTuple):
    """The engine has taken a request."""

    id: int
    prompt_tokens: int


class Beginning(Command[Begun], abstract=True):
    """A command whose deltas go to a stream of the sender's."""

    __slots__ = ()


# Requests


@dataclass(frozen=True, slots=True)
class Submit(Beginning):
    """A new request."""

    prompt: tuple[int, ...]
    params: SamplingParams
    priority: int = 0  # smaller runs first
    deadline: float | None = None  # seconds from now to its first token
    salt: bytes = b""  # separates prefix caches of different owners
    said: tuple[int, ...] = ()  # tokens with which the reply begins already
    continues: bool = True  # the reply's text goes on from the prompt's
    sender = Sender.SCREEN  # over HTTP, a prompt has to pass the gate
    forms: ClassVar = {"params": _PARAMS}


@dataclass(frozen=True, slots=True)
class Fork(Beginning):
    """A request that goes on from a running one's tokens, and shares its blocks."""

    id: int
    params: SamplingParams | None = None  # None: those of the running one
    sender = Sender.SCREEN
    forms: ClassVar = {"params": _SOME_PARAMS}

    def __post_init__(self) -> None:
        _check_id("id", self.id)


@dataclass(frozen=True, slots=True)
class Update(Command[None]):
    """Other sampling parameters, from the next step on that is not launched yet."""

    id: int
    changes: Mapping[str, Any]
    sender = Sender.KEY
    forms: ClassVar = {"changes": _CHANGES}

    def __post_init__(self) -> None:
        _check_id("id", self.id)
        if not self.changes:
            raise BadInput("changes must name at least one sampling parameter", field="changes")


@dataclass(frozen=True, slots=True)
class Abort(Command[None]):
    """Ends requests, all between the same two steps. One that has ended already is left in peace."""

    ids: tuple[int, ...]
    sender = Sender.KEY

    def __post_init__(self) -> None:
        for id in self.ids:
            _check_id("ids", id)


@dataclass(frozen=True, slots=True)
class Preempt(Command[None]):
    """Makes a running request give way for a moment."""

    id: int
    sender = Sender.KEY

    def __post_init__(self) -> None:
        _check_id("id", self.id)


# The engine


@dataclass(frozen=True, slots=True)
class SetSwitch(Command[None]):
    """Turns one of the snapshot's switches off or on. Tokens stay the same."""

    name: str
    on: bool
    sender = Sender.KEY

    def __post_init__(self) -> None:
        _check_name("name", self.name)


@dataclass(frozen=True, slots=True)
class SetQuantization(Command[None]):
    """Begins to keep the weights in another scheme. Events and snapshots report the progress."""

    scheme: str
    sender = Sender.KEY

    def __post_init__(self) -> None:
        _check_name("scheme", self.scheme)


@dataclass(frozen=True, slots=True)
class CancelQuantization(Command[None]):
    """Goes back to the scheme before, where a change is under way."""

    sender = Sender.KEY


@dataclass(frozen=True, slots=True)
class SetKvScheme(Command[None]):
    """Another form of the cache, while no request is alive. What was cached is forgotten."""

    scheme: str
    sender = Sender.KEY

    def __post_init__(self) -> None:
        _check_name("scheme", self.scheme)


@dataclass(frozen=True, slots=True)
class Warm(Command[None]):
    """Does now, beside the steps, what the first request to need it would wait for."""

    sender = Sender.SCREEN


@dataclass(frozen=True, slots=True)
class GetSnapshot(Command[Snapshot]):
    """The engine between two steps."""

    sender = Sender.SCREEN  # over HTTP, GET /engine/snapshot makes one for all who ask at once


@dataclass(frozen=True, slots=True)
class MeasureSpeeds(Command[Speeds]):
    """What the engine's device can do at best. Measured once, beside the steps."""

    sender = Sender.KEY


# The form


def encode_command(command: Command[Any]) -> dict[str, Any]:
    """Raises the error of a field that the sender could have known to be wrong."""
    return {"v": VERSION, "command": command.verb, "with": fields_of(command)}


def decode_command(value: Any, sender: Sender) -> Command[Any]:
    asked = check_version("command", value)
    verb = asked.get("command")
    if type(verb) is not str:
        raise BadWire(f"command: must have the name of a command, not {verb!r:.60}")
    return command_of(verb, asked.get("with"), sender)


def fields_of(command: Command[Any]) -> dict[str, Any]:
    """What differs from the defaults, as JSON."""
    written: dict[str, Any] = _form(type(command)).write(command)
    return written


def command_of(verb: str, fields: Any, sender: Sender) -> Command[Any]:
    """The command of that name; raises what is wrong with the name, or with a field."""
    kind = known_command(verb, sender)
    names = field_types(kind)
    if type(fields) is not dict:
        raise BadInput(f"{verb} takes an object of its fields, not {fields!r:.60}")
    if unknown := next((name for name in fields if name not in names), None):
        known = f"it has {', '.join(names)}" if names else "it has none"
        raise BadInput(f"{unknown[:100]} is not a field of {verb}; {known}", field=unknown)
    try:
        command: Command[Any] = _form(kind).read(fields)
    except DecodeError as misfit:
        raise BadInput(str(misfit), field=misfit.field) from None
    return command


def known_command(verb: str, sender: Sender) -> type[Command[Any]]:
    """The class of that name. What this sender may not send is unknown to it."""
    kind = _registry.get(verb)
    if kind is None or kind.sender < sender:
        raise UnknownCommand(f"there is no command {verb[:100]!r} here", field="command", value=verb)
    return kind


def commands_for(sender: Sender) -> list[type[Command[Any]]]:
    """All that this sender may send, by name."""
    return [kind for _, kind in sorted(_registry.items()) if kind.sender >= sender]


def encode_result(kind: type[Command[Any]], result: Any) -> Any:
    return _result_form(kind).write(result)


def decode_result(kind: type[Command[Any]], value: Any) -> Any:
    try:
        return _result_form(kind).read(value)
    except DecodeError as misfit:
        raise BadWire(f"the answer to {kind.verb}: {misfit}") from None


def _result_of(kind: Any) -> Any:
    for base in (each for above in kind.__mro__ for each in getattr(above, "__orig_bases__", ())):
        if get_origin(base) is Command:
            return get_args(base)[0]
    raise TypeError(f"{kind.__name__} does not say what it gives: derive it from Command[...]")


result_of: Callable[[Any], Any] = cache(_result_of)  # the type of what a command gives
_form: Callable[[Any], Codec] = cache(lambda kind: record(kind, sparse=True, forms=kind.forms))
_result_form: Callable[[Any], Codec] = cache(lambda kind: codec(result_of(kind)))


def _check_id(name: str, value: object) -> None:
    if type(value) is not int or not 0 <= value < _MAX_ID:
        shown = value if type(value) is not int or value.bit_length() < 128 else hex(value)
        raise BadInput(f"{name} must be the number of a request, not {shown!r:.60}", field=name, value=value)


def _check_name(name: str, value: object) -> None:
    if type(value) is not str or len(value) > _MAX_NAME:
        problem = f"must be a name of at most {_MAX_NAME} characters"
        raise BadInput(f"{name} {problem}, not {value!r:.60}", field=name, value=value)
