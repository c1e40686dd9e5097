"""Errors in Anthropic's form, on the paths of its API."""

from typing import Any

from engine.server.http.errors import ApiError, ErrorForm
from engine.server.http.routes import RenamingRoute

PATH = "/v1/messages"
NAMES = {"stop": "stop_sequences", "grammar": "tools"}  # the engine's name: Anthropic's
_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}
NO_THREADS = "thread_unsupported_request"  # tells a client to send the whole conversation
_OVERLOADED = ("overloaded", "shutting_down")  # codes of errors after which a client may try again


def error_record(error: ApiError) -> dict[str, Any]:
    """Return the error in Anthropic's form."""
    kind = _KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    if error.code in _OVERLOADED:
        kind = "overloaded_error"
    record: dict[str, Any] = {"type": kind, "message": str(error)}
    if error.code == NO_THREADS:
        record["details"] = {"error_code": NO_THREADS}
    return {"type": "error", "error": record}


def error_form(path: str) -> ErrorForm | None:
    """Return the form of errors on this path, or None if it is not a path of this API."""
    return error_record if path == PATH or path.startswith(f"{PATH}/") else None


class AnthropicRoute(RenamingRoute):
    names = NAMES
