"""What went wrong, in the form in which OpenAI's clients read it."""

import json
import re
from typing import Any

from fastapi.responses import Response

from engine.errors import (
    BadInput,
    BadParams,
    EngineDead,
    EngineError,
    QueueFull,
    RequestTooLong,
    UnknownRequest,
)

_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_PLACE = re.compile(r"(messages|tools|template options)\b[\w\[\].]*")
_OPTIONS = ("template options", "chat_template_kwargs")  # what the engine calls so, and clients
_NAMES = {"stop_ids": "stop_token_ids", "beams": "num_beams"}  # of parameters, likewise


class ApiError(Exception):
    """An answer other than 200."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
        close: bool = False,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code
        self.headers = {}
        if retry_after is not None:
            self.headers["retry-after"] = str(retry_after)
        if close:
            self.headers["connection"] = "close"

    def record(self) -> dict[str, Any]:
        kind = _KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def body(self) -> bytes:
        return json.dumps(self.record()).encode()  # in ASCII: a client's own letters may be half of a pair

    def response(self) -> Response:
        return Response(self.body(), self.status, self.headers, media_type="application/json")


def from_engine(error: EngineError) -> ApiError:
    """What the engine refused, as an answer that names the field."""
    message = str(error)
    match error:
        case BadParams():
            return ApiError(400, message, param=error.field)
        case RequestTooLong():
            return ApiError(400, message, code="context_length_exceeded")
        case UnknownRequest():
            return ApiError(404, message)
        case BadInput():
            place = _PLACE.match(message)
            return ApiError(400, message.replace(*_OPTIONS), param=place and place[0].replace(*_OPTIONS))
        case QueueFull():
            return ApiError(503, message, code="overloaded", retry_after=1)
        case EngineDead():
            return ApiError(503, message, code="engine_dead")
    return ApiError(500, message)


def in_openai_words(error: BadParams) -> ApiError:
    """The same for a client that knows a parameter by OpenAI's name, or vLLM's."""
    name = _NAMES.get(error.field, error.field)
    return ApiError(400, f"{name}{str(error).removeprefix(error.field)}", param=name)
