"""What can go wrong, by name. Every message says the thing, the value, and what to do."""

import math
import os
import traceback
from collections.abc import Iterator
from typing import Any, Self

_LONGEST = 200  # characters of a field or a value


class EngineError(Exception):
    """The root of all errors the engine raises on purpose.

    `field` names what was wrong in what the caller sent, and `value` is what it held, where that is known.
    So an error can cross a wire as a value, and no code has to read its text.
    """

    def __init__(self, text: str = "", *, field: str = "", value: object = None) -> None:
        super().__init__(text)
        self.field, self.value = field[:_LONGEST], _shortened(value)

    def to_wire(self) -> dict[str, Any]:
        return {"kind": type(self).__name__, "text": str(self), "field": self.field, "value": self.value}

    @classmethod
    def from_wire(cls, value: Any) -> Self:
        """An error of its own class. A class that is not known here gives a plain EngineError."""
        match value:
            case {"kind": str(kind), "text": str(text), "field": str(field), "value": held}:
                known = next((each for each in _below(cls) if each.__name__ == kind), cls)
                error = known.__new__(known, text)  # __init__ would put the text together once more
                EngineError.__init__(error, text, field=field, value=held)
                return error
        raise BadWire(f"error: must have a kind, a text, a field and a value, not {value!r:.60}")


class BadInput(EngineError):
    """The caller asked for something that has no meaning."""


class BadParams(BadInput):
    """A sampling parameter is unknown or out of range."""

    def __init__(self, field: str, problem: str, value: object = None) -> None:
        super().__init__(f"{field}: {problem}", field=field, value=value)


class RequestTooLong(BadInput):
    """The request can never fit the model or the cache."""


class UnknownRequest(BadInput):
    """No request of that id is alive."""


class UnknownCommand(BadInput):
    """There is no command of that name, or none for this sender."""


class TemplateError(BadInput):
    """A chat template failed, or took too long."""


class BadWire(EngineError):
    """What another process sent is not of the form, or the version, that this one reads."""


class QueueFull(EngineError):
    """Too many requests wait already; try again later."""


class ModelNotFound(EngineError):
    """There is no model of that name, here or on the hub."""


class UnsupportedModel(EngineError):
    """The model exists, but this engine cannot run it; the message names the part."""


class BadCheckpoint(EngineError):
    """The model's files are broken, incomplete, or of a kind that is refused."""


class NoMemory(EngineError):
    """A step found no memory to compute in; its block moves are done, and nothing else of it is."""


class Ending(EngineError):
    """The server is about to end and takes nothing more; another one may come in its place."""


class EngineDead(EngineError):
    """The engine has stopped for good and takes nothing more."""


def place(error: Exception) -> str:
    """Where it was raised, for the author of that code: `back_end.py:31, in attend`."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{os.path.basename(frame.filename)}:{frame.lineno}, in {frame.name}"


def _shortened(value: object) -> object:
    """What is short and JSON stays as it is; of all else the beginning of its text."""
    match value:
        case None | bool():
            return value
        case int():  # repr refuses the very long ones
            return value if value.bit_length() <= 64 else hex(value)[:_LONGEST]
        case float() if math.isfinite(value):
            return value
        case str():
            return value[:_LONGEST]
    return repr(value)[:_LONGEST]


def _below(kind: Any) -> Iterator[Any]:
    for each in kind.__subclasses__():
        yield each
        yield from _below(each)
