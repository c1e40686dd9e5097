"""Errors in Ollama's form, with the names of its fields."""

from collections.abc import Mapping
from typing import Any, ClassVar

from engine.api.errors import BadInput
from engine.server.http.errors import ApiError, ErrorForm, renamed
from engine.server.http.routes import RenamingRoute

_NAMES = {  # the engine's name: Ollama's
    "grammar": "format",
    "max_tokens": "num_predict",
    "repetition_penalty": "repeat_penalty",
    "template options": "think",
}


def in_ollama_words(error: BadInput) -> ApiError:
    """Return the response, with the field under the name that the client used."""
    return renamed(error, _NAMES)


def error_record(error: ApiError) -> dict[str, Any]:
    return {"error": str(error)}


def error_form(path: str) -> ErrorForm | None:
    """Return the form of errors on this path, or None if it is not a path of this API."""
    return error_record if path.startswith("/api/") else None


class OllamaRoute(RenamingRoute):
    names = _NAMES


class EmbedRoute(RenamingRoute):
    names: ClassVar[Mapping[str, str]] = {"prompt": "input"}
