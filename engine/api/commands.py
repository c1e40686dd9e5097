"""The commands of an engine: a class for each verb, with its permitted senders and its result.

To add a verb, add a class here and a handler in engine/serving/handlers.py; every client can then use it.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, partial
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, get_args, get_origin

from engine.api import wire
from engine.api.codec import Codec, DecodeError, codec, field_types, record
from engine.api.config import is_amount, is_factor
from engine.api.errors import BadInput, BadWire, UnknownCommand
from engine.api.params import SamplingParams
from engine.api.snapshot import Snapshot
from engine.api.speeds import Speeds

T = TypeVar("T")
_MAX_NAME = 100  # characters of a scheme's or switch's name
_MAX_PATH = 4096  # characters
_MAX_ID = 2**63


class Sender(IntEnum):
    """Who sends a command. Higher values have fewer permissions."""

    LIBRARY = 0  # code in the engine's process
    SCREEN = 1  # the program that owns the engine, perhaps in another process
    KEY = 2  # an HTTP client with an API key, including a remote screen


_PARAMS = Codec(wire.params_to_json, wire.params_from_json)
_CHANGES = Codec(wire.changes_to_json, partial(wire.changes_from_json, field="changes"))
_SOME_PARAMS = Codec(
    lambda params: None if params is None else wire.params_to_json(params),
    lambda value: None if value is None else wire.params_from_json(value),
)
_registry: dict[str, "type[Command[Any]]"] = {}


class Command(Generic[T]):
    """The base class of all commands. `T` is the type of the result."""

    __slots__ = ()
    sender: ClassVar[Sender] = Sender.LIBRARY  # least trusted sender permitted; default: in-process only
    forms: ClassVar[Mapping[str, Codec]] = {}  # of fields whose form does not follow from their types
    wire_names: ClassVar[Mapping[str, str]] = {}  # of fields that have another name on the wire
    verb: ClassVar[str]  # its name on the wire

    def __init_subclass__(cls, *, abstract: bool = False) -> None:
        super().__init_subclass__()
        if abstract:
            return
        cls.verb = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        known = _registry.setdefault(cls.verb, cls)
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(f"command {cls.verb!r} already exists in {known.__module__}")
        _registry[cls.verb] = cls  # slots=True creates the dataclass again, under the same name


class Accepted(NamedTuple):
    """The engine has accepted a request."""

    id: int
    prompt_tokens: int


class BlockNaming(NamedTuple):
    """How an engine names its blocks, and which are findable in its prefix cache."""

    root: tuple[bytes, bytes, str, str]  # the start of each chain of names, before salt and adapter
    block_size: int
    names: tuple[str, ...]  # short names
    adapters: tuple[tuple[str, bytes], ...] = ()  # the loaded ones, with the digests that names depend on


class StreamingCommand(Command[Accepted], abstract=True):
    """A command that starts a request and streams its deltas to the sender."""

    __slots__ = ()


# Requests


@dataclass(frozen=True, slots=True)
class Submit(StreamingCommand):
    """Submit a new request."""

    prompt: tuple[int, ...]
    params: SamplingParams
    priority: int = 0  # lower runs first
    deadline: float | None = None  # seconds from now to its first token
    salt: bytes = b""  # separates prefix caches of different owners
    reply_prefix: tuple[int, ...] = ()  # tokens that the reply starts with
    continues: bool = True  # the reply's text continues the prompt's
    chat: str = ""  # blocks on disk belong to this chat, and are deleted with it
    adapter: str = ""  # the name of a loaded LoRA adapter
    held: bool = False  # it waits for `Proceed`, since another engine computes its prompt
    sends: int | None = None  # the prompt's first block to send to other engines; None: none is sent
    sender = Sender.SCREEN  # over HTTP, prompts go through the server's routes, which check limits
    forms: ClassVar = {"params": _PARAMS}
    wire_names: ClassVar = {"reply_prefix": "said"}  # its older name


@dataclass(frozen=True, slots=True)
class Fork(StreamingCommand):
    """Start a request that continues a running one's tokens and shares its blocks."""

    id: int
    params: SamplingParams | None = None  # None: those of the running request
    chat: str | None = None  # None: that of the running request
    sender = Sender.SCREEN
    forms: ClassVar = {"params": _SOME_PARAMS}

    def __post_init__(self) -> None:
        _check_id("id", self.id)


@dataclass(frozen=True, slots=True)
class Update(Command[None]):
    """Change sampling parameters from the next launched step on."""

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
    """End requests, all between the same two steps. Requests that have already ended are skipped."""

    ids: tuple[int, ...]
    sender = Sender.KEY

    def __post_init__(self) -> None:
        for id in self.ids:
            _check_id("ids", id)


@dataclass(frozen=True, slots=True)
class Proceed(Command[None]):
    """Let a request start that was submitted with `held`. No-op if it has ended."""

    id: int
    sender = Sender.SCREEN

    def __post_init__(self) -> None:
        _check_id("id", self.id)


@dataclass(frozen=True, slots=True)
class Preempt(Command[None]):
    """Preempt a running request. It resumes when there is room."""

    id: int
    sender = Sender.KEY

    def __post_init__(self) -> None:
        _check_id("id", self.id)


# The engine


@dataclass(frozen=True, slots=True)
class SetSwitch(Command[None]):
    """Turn one of the snapshot's switches on or off. Replies do not change."""

    name: str
    on: bool
    sender = Sender.KEY

    def __post_init__(self) -> None:
        _check_name("name", self.name)


@dataclass(frozen=True, slots=True)
class SetLatencyTarget(Command[None]):
    """Set the time to a first token of later requests without a deadline, under the policy latency."""

    seconds: float
    sender = Sender.KEY

    def __post_init__(self) -> None:
        if not is_amount(self.seconds):
            raise BadInput(f"seconds must be 0 or more, not {self.seconds!r}", field="seconds")


@dataclass(frozen=True, slots=True)
class SetMaxSlowdown(Command[None]):
    """Limit how much longer a step may take with prompts than with its decodes alone; null: no limit."""

    factor: float | None
    sender = Sender.KEY

    def __post_init__(self) -> None:
        if self.factor is not None and not is_factor(self.factor):
            raise BadInput(f"factor must be 1 or more, or null, not {self.factor!r}", field="factor")


@dataclass(frozen=True, slots=True)
class SetQuantization(Command[None]):
    """Start converting the weights to another scheme. Events and snapshots report the progress."""

    scheme: str
    sender = Sender.KEY

    def __post_init__(self) -> None:
        _check_name("scheme", self.scheme)


@dataclass(frozen=True, slots=True)
class CancelQuantization(Command[None]):
    """Return to the previous scheme, if a change is in progress."""

    sender = Sender.KEY


@dataclass(frozen=True, slots=True)
class SetKvScheme(Command[None]):
    """Change the scheme of the cache. No request may be alive; cached blocks are forgotten."""

    scheme: str
    sender = Sender.KEY

    def __post_init__(self) -> None:
        _check_name("scheme", self.scheme)


@dataclass(frozen=True, slots=True)
class LoadAdapter(Command[None]):
    """Load a LoRA adapter in PEFT's format. Requests can name it from then on."""

    name: str
    path: str  # a folder, or a name on the hub
    sender = Sender.KEY

    def __post_init__(self) -> None:
        _check_name("name", self.name)
        if type(self.path) is not str or not len(self.path) <= _MAX_PATH:
            raise BadInput("path must name a folder, or an adapter on the hub", field="path", value=self.path)


@dataclass(frozen=True, slots=True)
class DropAdapter(Command[None]):
    """Drop a LoRA adapter that no request uses."""

    name: str
    sender = Sender.KEY

    def __post_init__(self) -> None:
        _check_name("name", self.name)


@dataclass(frozen=True, slots=True)
class Warm(Command[None]):
    """Load lazily initialized parts once the warm-up is over, concurrently with the steps."""

    sender = Sender.SCREEN


@dataclass(frozen=True, slots=True)
class GetSnapshot(Command[Snapshot]):
    """The state of the engine between two steps."""

    sender = Sender.SCREEN  # over HTTP, GET /engine/snapshot serves all concurrent readers with one


@dataclass(frozen=True, slots=True)
class ReportBlocks(Command[BlockNaming]):
    """From now on, report which blocks become findable in the prefix cache and which no longer are."""

    sender = Sender.SCREEN


@dataclass(frozen=True, slots=True)
class DrainReplica(Command[None]):
    """Stop sending prompts to a replica of a fleet. When its requests have ended, it is restarted.

    `stop`: it stays stopped instead, until `StartReplica`. Events report when.
    """

    replica: int
    stop: bool = False
    sender = Sender.KEY


@dataclass(frozen=True, slots=True)
class StartReplica(Command[None]):
    """Send prompts to a draining replica again, or start one that has stopped or died."""

    replica: int
    sender = Sender.KEY


@dataclass(frozen=True, slots=True)
class MeasureSpeeds(Command[Speeds]):
    """The peak speeds of the engine's device. Measured once, concurrently with the steps."""

    sender = Sender.KEY


# JSON form


def encode_command(command: Command[Any]) -> dict[str, Any]:
    """Encode a command. Raises the error of an invalid field."""
    return {"v": wire.VERSION, "command": command.verb, "with": fields_of(command)}


def decode_command(value: Any, sender: Sender) -> Command[Any]:
    message = wire.check_version("command", value)
    verb = message.get("command")
    if type(verb) is not str:
        raise BadWire(f"command: must name a command, not {verb!r:.60}")
    return command_of(verb, message.get("with"), sender)


def fields_of(command: Command[Any]) -> dict[str, Any]:
    """The fields that differ from their defaults, as JSON."""
    written: dict[str, Any] = _form(type(command)).write(command)
    return written


def command_of(verb: str, fields: Any, sender: Sender) -> Command[Any]:
    """Build a command from its name and fields. Raises if either is invalid."""
    kind = known_command(verb, sender)
    names = _names(kind)
    if type(fields) is not dict:
        raise BadInput(f"{verb}: fields must be an object, not {fields!r:.60}")
    if unknown := next((name for name in fields if name not in names), None):
        known = f"it has {', '.join(names)}" if names else "it has none"
        raise BadInput(f"{unknown[:100]} is not a field of {verb}; {known}", field=unknown)
    try:
        command: Command[Any] = _form(kind).read(fields)
    except DecodeError as error:
        raise BadInput(str(error), field=error.field) from None
    return command


def known_command(verb: str, sender: Sender) -> type[Command[Any]]:
    """The class of a command. Commands that this sender may not send are unknown to it."""
    kind = _registry.get(verb)
    if kind is None or kind.sender < sender:
        raise UnknownCommand(f"there is no command {verb[:100]!r}", field="command", value=verb)
    return kind


def encode_result(kind: type[Command[Any]], result: Any) -> Any:
    return _result_form(kind).write(result)


def decode_result(kind: type[Command[Any]], value: Any) -> Any:
    try:
        return _result_form(kind).read(value)
    except DecodeError as error:
        raise BadWire(f"the answer to {kind.verb}: {error}") from None


def _result_of(kind: Any) -> Any:
    for base in (each for above in kind.__mro__ for each in getattr(above, "__orig_bases__", ())):
        if get_origin(base) is Command:
            return get_args(base)[0]
    raise TypeError(f"{kind.__name__} has no result type; derive it from Command[...]")


result_of: Callable[[Any], Any] = cache(_result_of)  # the type of a command's result
_form: Callable[[Any], Codec] = cache(
    lambda kind: record(kind, sparse=True, forms=kind.forms, wire_names=kind.wire_names)
)
_names: Callable[[Any], list[str]] = cache(  # of its fields in JSON
    lambda kind: [kind.wire_names.get(name, name) for name in field_types(kind)]
)
_result_form: Callable[[Any], Codec] = cache(lambda kind: codec(result_of(kind)))


def _check_id(name: str, value: object) -> None:
    if type(value) is not int or not 0 <= value < _MAX_ID:
        shown = value if type(value) is not int or value.bit_length() < 128 else hex(value)
        raise BadInput(f"{name} must be a request id, not {shown!r:.60}", field=name, value=value)


def _check_name(name: str, value: object) -> None:
    if type(value) is not str or len(value) > _MAX_NAME:
        problem = f"must be a name of at most {_MAX_NAME} characters"
        raise BadInput(f"{name} {problem}, not {value!r:.60}", field=name, value=value)
