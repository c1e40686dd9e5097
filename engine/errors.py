"""What can go wrong, by name. Every message says the thing, the value, and what to do."""

import os
import traceback


class EngineError(Exception):
    """The root of all errors the engine raises on purpose."""


class BadInput(EngineError):
    """The caller asked for something that has no meaning."""


class BadParams(BadInput):
    """A sampling parameter is unknown or out of range."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field


class RequestTooLong(BadInput):
    """The request can never fit the model or the cache."""


class UnknownRequest(BadInput):
    """No request of that id is alive."""


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


class EngineDead(EngineError):
    """The engine has stopped for good and takes nothing more."""


def place(error: Exception) -> str:
    """Where it was raised, for whoever wrote that: `back_end.py:31, in attend`."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{os.path.basename(frame.filename)}:{frame.lineno}, in {frame.name}"
