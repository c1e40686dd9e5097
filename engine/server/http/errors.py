"""Errors as HTTP responses: in OpenAI's form with the engine's own error next to it, or in another API's."""

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from fastapi.responses import Response

from engine.api.errors import (
    MORE_CONTEXT,
    BadCheckpoint,
    BadInput,
    BadParams,
    Ending,
    EngineDead,
    EngineError,
    ModelNotFound,
    QueueFull,
    RequestTooLong,
    UnknownAdapter,
    UnknownCommand,
    UnknownRequest,
    UnsupportedModel,
)
from engine.api.wire import encode_error

_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_OTHER_FIELD = re.compile(r"\b(beams|max_tokens)(?= \(\d+\))")  # "3 is more than beams (2)"


def quoted(value: Any) -> str:
    """The start of a client's value, as in JSON."""
    match value:
        case str():
            return repr(value[:80])
        case float() if not math.isfinite(value):  # JSON has none, but 1e999 is read as one
            return f"a number that is too {'large' if value > 0 else 'small'}"
    return json.dumps(value)[:80]


class ApiError(Exception):
    """An error response. `cause`: the engine error that minichat's own client raises."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
        close: bool = False,
        cause: EngineError | None = None,
    ) -> None:
        super().__init__(message)
        usual = BadInput if status < 500 else EngineError
        self.cause = cause or usual(message, field=param or "")
        self.status, self.param, self.code = status, param, code
        self.headers = {}
        if retry_after is not None:
            self.headers["retry-after"] = str(retry_after)
        if close:
            self.headers["connection"] = "close"

    def record(self) -> dict[str, Any]:
        """Return the error in OpenAI's form."""
        kind = _KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def body(self, scope: Mapping[str, Any]) -> bytes:
        """Return the body of the response, in the form that the scope of the request names."""
        form: ErrorForm | None = scope.get(FORM)
        record = form(self) if form else self.record() | {"engine": encode_error(self.cause)}
        return json.dumps(record).encode()  # ASCII: text from the client may hold a lone surrogate

    def response(self, scope: Mapping[str, Any]) -> Response:
        return Response(self.body(scope), self.status, self.headers, media_type="application/json")


def forget_frames(error: BaseException | None) -> None:
    """Drop the frames of an error that was answered. Some hold the stream that the error came from, and the
    whole request: a cycle, and a server with few new objects collects garbage rarely.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


ErrorForm = Callable[[ApiError], dict[str, Any]]
FORM = "minichat.error_form"  # the entry of an ASGI scope that holds the form, for paths of other APIs


def from_engine(error: EngineError) -> ApiError:
    """Return the response for an engine error, with the field it names."""
    text, field = str(error), error.field or None
    match error:
        case RequestTooLong():
            for way in MORE_CONTEXT.values():  # advice for the operator of the server, not for a client
                text = text.removesuffix(f" or {way}")
            return ApiError(400, text, param=field, code="context_length_exceeded", cause=error)
        case UnknownRequest() | UnknownCommand() | UnknownAdapter():
            return ApiError(404, text, param=field, cause=error)
        case ModelNotFound():
            return ApiError(404, text, param=field, cause=error)
        case BadInput() | BadCheckpoint() | UnsupportedModel():
            return ApiError(400, text, param=field, cause=error)
        case QueueFull():
            return ApiError(503, text, code="overloaded", retry_after=1, cause=error)
        case Ending():
            return ApiError(503, text, code="shutting_down", retry_after=5, cause=error)
        case EngineDead():
            return ApiError(503, text, code="engine_dead", cause=error)
    return ApiError(500, text, cause=error)


def renamed(error: BadInput, names: Mapping[str, str]) -> ApiError:
    """Return the response for a refused parameter, under the client's name for it."""
    refusal = from_engine(error)
    param, problem = refusal.param, str(refusal)
    if isinstance(error, RequestTooLong):  # its text names another field, too
        problem = problem.replace("max_tokens", names.get("max_tokens", "max_tokens"))
    if isinstance(error, BadParams):  # so may its text, with the field's value
        problem = _OTHER_FIELD.sub(lambda found: names.get(found[0], found[0]), problem)
    ours = next((each for each in names if error.field == each or error.field.startswith(f"{each}.")), None)
    if ours is not None:
        param = names[ours] + error.field.removeprefix(ours)
        problem = f"{param}: {problem.removeprefix(f'{error.field}: ')}"
    return ApiError(refusal.status, problem, param=param, code=refusal.code, cause=error)
