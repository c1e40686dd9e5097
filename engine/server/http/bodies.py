"""Request bodies, read and parsed into requests. Long bodies are parsed off the event loop."""

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import Request, Response
from starlette.requests import HTTPConnection

from engine.server.config import MAX_DEPTH, MAX_MEMBERS, MAX_PARTS
from engine.server.http.connection import state_of
from engine.server.http.errors import ApiError
from engine.server.schema import Strict, parsed

M = TypeVar("M", bound=Strict)
T = TypeVar("T")
GONE = 499  # the status of a response whose client has disconnected
_CONTAINERS = frozenset((dict, list))
_LONG = 2**16  # bytes; shorter bodies are parsed in a few milliseconds
_BODY_SECONDS = 60.0


async def read_as(request: Request, kind: type[M], *, any_type: bool = False) -> M:
    """Return the body as a `kind`, after checking its size and depth.

    `any_type`: if a key is required, accept JSON of any content type. A page of another site has no key.
    """
    body = await _read(request, any_type=any_type)
    return await off_loop(request, lambda: parsed(kind, parse_json(_text(body))), len(body))


async def read_json(request: Request) -> Any:
    """Return the body as parsed JSON, after the same checks."""
    body = await _read(request)
    return await off_loop(request, lambda: parse_json(_text(body)), len(body))


async def _read(request: Request, *, any_type: bool = False) -> bytes:
    config = state_of(request).config
    content = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content != "application/json" and not (any_type and config.keys):
        # This also blocks web pages of other sites: browsers send a preflight request for this type.
        raise ApiError(415, f"content-type must be application/json, got {content[:80] or 'none'}")
    coding = request.headers.get("content-encoding", "").strip().lower()
    if coding not in ("", "identity"):
        raise ApiError(415, f"content-encoding {coding[:80]} is not supported; send the body uncompressed")
    return await _body(request, config.max_body)


async def off_loop(client: HTTPConnection, work: Callable[[], T], size: int | None = None) -> T:
    """Run work on what a client sent, in a thread if that is long. `size`: bytes of a new message."""
    if size is not None:
        client.state.sends_long = size > _LONG
    return await state_of(client).engine.read(work) if getattr(client.state, "sends_long", False) else work()


async def written(request: Request, answer: Callable[[], bytes]) -> Response:
    """Return an answer of JSON. It is made in a thread: a million tokens take seconds."""
    return Response(await state_of(request).engine.work(answer), media_type="application/json")


def parse_json(text: str) -> Any:
    """Parse JSON from a client, and refuse invalid, deeply nested or very large values."""
    try:
        value = json.loads(text, parse_constant=_no_number)
    except RecursionError:
        raise _too_deep() from None
    except json.JSONDecodeError as error:
        raise ApiError(400, f"invalid JSON: {error}") from None
    except ValueError:  # the only other one: Python's limit on the digits of an integer
        most = sys.get_int_max_str_digits()
        raise ApiError(400, f"a number in the JSON body must have at most {most} digits") from None
    # Few brackets and colons cannot be too many levels, parts or members.
    if text.count("[") + text.count("{") > MAX_DEPTH or text.count(":") > MAX_MEMBERS:
        _check_form(value)
    return value


async def _body(request: Request, most: int) -> bytes:
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced[:20]) > most:
        raise _too_large(most)
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            while (message := await request.receive())["type"] == "http.request":
                body += message.get("body", b"")
                if len(body) > most:
                    raise _too_large(most)
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {_BODY_SECONDS:g} s", close=True) from None
    raise ApiError(GONE, "the client disconnected while sending the body")


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is not UTF-8: invalid byte at offset {error.start}") from None


def _check_form(value: Any) -> None:
    """Refuse a value that is nested too deep or has too many members, to bound the work of validation."""
    level = [value] if type(value) in _CONTAINERS else []
    parts = 0
    for _ in range(MAX_DEPTH):
        if not level:
            return
        if any(type(each) is dict and len(each) > MAX_MEMBERS for each in level):
            raise ApiError(400, f"an object in the JSON body must have at most {MAX_MEMBERS} members")
        if (parts := parts + len(level)) > MAX_PARTS:
            raise ApiError(400, f"the JSON body must have at most {MAX_PARTS} lists and objects")
        inside = [outer.values() if type(outer) is dict else outer for outer in level]
        level = [
            inner
            for values in inside
            if not _CONTAINERS.isdisjoint(map(type, values))  # token ids have none
            for inner in values
            if type(inner) in _CONTAINERS
        ]
    if level:
        raise _too_deep()


def _no_number(name: str) -> None:
    raise ApiError(400, f"invalid JSON: {name} is not a JSON number")


def _too_deep() -> ApiError:
    return ApiError(400, f"the JSON body must be nested at most {MAX_DEPTH} levels deep")


def _too_large(most: int) -> ApiError:
    what = f"the body must be at most {most} bytes; start the server with a larger --max-body"
    return ApiError(413, what, close=True)
