"""The engine's errors. A message names the thing, the value, and what to do."""

import math
import os
import traceback
from collections.abc import Collection, Iterator
from typing import Any, Literal, Self

ContextBound = Literal["model", "max_context", "blocks"]
MORE_CONTEXT: dict[ContextBound, str] = {
    "model": "choose a larger model",
    "max_context": "raise max_context",
    "blocks": "give the KV cache more blocks",
}
FULL: dict[ContextBound, str] = {  # what a reply without max_tokens has filled
    "model": "the context is full",
    "max_context": "the context is full",
    "blocks": "the KV cache is full; give it more blocks",
}
_LONGEST = 200  # characters of a field or a value


class EngineError(Exception):
    """The base class of all errors that the engine raises on purpose.

    `field` names the invalid part of the caller's input and `value` is its value, if known. An error can be
    sent to another process as a value, and code need not parse its text.
    """

    def __init__(self, text: str = "", *, field: str = "", value: object = None) -> None:
        super().__init__(text)
        self.field, self.value = field[:_LONGEST], _shortened(value)

    @property
    def problem(self) -> str:
        """The text without the field's name in front."""
        return str(self).removeprefix(f"{self.field}: ") if self.field else str(self)

    def to_wire(self) -> dict[str, Any]:
        return {"kind": type(self).__name__, "text": str(self), "field": self.field, "value": self.value}

    @classmethod
    def from_wire(cls, value: Any) -> Self:
        """Rebuild an error of its class. Unknown classes become a plain EngineError."""
        match value:
            case {"error": str(kind), "message": str(text)}:  # the form of older engines
                about = value.get("about")
                field = about.get("field", "") if isinstance(about, dict) else ""
                return cls.from_wire({"kind": kind, "text": text, "field": str(field), "value": None})
            case {"kind": str(kind), "text": str(text), "field": str(field), "value": held}:
                known = next((each for each in _below(cls) if each.__name__ == kind), cls)
                error = known.__new__(known, text)  # __init__ would compose the text again
                EngineError.__init__(error, text, field=field, value=held)
                return error
        raise BadWire(f"error: must have a kind, a text, a field and a value, not {value!r:.60}")


class BadInput(EngineError):
    """The caller's input is invalid."""


class BadParams(BadInput):
    """A sampling parameter is unknown or out of range."""

    def __init__(self, field: str, problem: str, value: object = None) -> None:
        super().__init__(f"{field}: {problem}", field=field, value=value)


class RequestTooLong(BadInput):
    """The request can never fit the model or the cache."""


class UnknownRequest(BadInput):
    """There is no live request with this id."""


class UnknownAdapter(BadInput):
    """No adapter with this name is loaded."""


class UnknownCommand(BadInput):
    """There is no command with this name, or not for this sender."""


class WeightsChanging(BadInput):
    """The weights are changing to another scheme, and the command has to wait for that."""


class TemplateError(BadInput):
    """A chat template failed, or took too long."""


class BadWire(EngineError):
    """Data from another process does not have the form or version that this one reads."""


class QueueFull(EngineError):
    """Too many requests are waiting; try again later."""


class ModelNotFound(EngineError):
    """There is no model with this name, locally or on the hub."""


class HubUnreachable(ModelNotFound):
    """The model is not on this machine, and it cannot be downloaded now."""


class UnsupportedModel(EngineError):
    """The model exists, but this engine cannot run it; the message names the unsupported part."""


class BadCheckpoint(EngineError):
    """The model's files are damaged, incomplete, or of a rejected kind."""


class NoRoom(BadInput):
    """A model does not fit into the device memory that is free now; another program may give some back."""


class NoMemory(EngineError):
    """A step ran out of memory. Its block copies are done, nothing else."""


class Ending(EngineError):
    """The server is shutting down and accepts no requests; another may replace it."""


class EngineDead(EngineError):
    """The engine has stopped permanently and accepts no requests."""


def place(error: BaseException) -> str:
    """Where an error was raised, such as `backend.py:31, in attend`."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{os.path.basename(frame.filename)}:{frame.lineno}, in {frame.name}"


def outside_vocab(vocab: int, tokens: Collection[int]) -> str:
    """A message about the first token outside a model's vocabulary, or ""."""
    if not tokens or (min(tokens) >= 0 and max(tokens) < vocab):
        return ""
    token = next(token for token in tokens if not 0 <= token < vocab)
    return f"token id {token} is out of range: this model has tokens 0 to {vocab - 1}"


def refuse_beside(alive: int) -> None:
    """Raise BadInput if requests are alive, whose blocks a change of the cache would lose."""
    if alive:
        wait = f"wait for {alive}, or end them"
        raise BadInput(f"cannot change the cache while requests are alive: {wait}")


def _shortened(value: object) -> object:
    """Keep a short JSON value; shorten anything else to the start of its repr."""
    match value:
        case None | bool():
            return value
        case int():  # repr fails for very long ones
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
