"""What clients send, as the requests that it stands for. Nobody else waits while a long one is read."""

import asyncio
import json
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect, HTTPConnection

from engine.server.config import MAX_DEPTH, MAX_MEMBERS, MAX_PARTS
from engine.server.http.connection import state_of
from engine.server.http.errors import ApiError
from engine.server.schema import Strict, parsed

M = TypeVar("M", bound=Strict)
T = TypeVar("T")
GONE = 499  # the status of an answer that nobody is there to read
_LONG = 2**16  # bytes; what is shorter is read in a few milliseconds
_BODY_SECONDS = 60.0


async def read_as(request: Request, kind: type[M]) -> M:
    """The body: JSON of a sound size and depth, and of that kind."""
    body = await _read(request)
    return await beside(request, lambda: parsed(kind, parse_json(_text(body))), len(body))


async def read_json(request: Request) -> Any:
    """The same of any kind."""
    body = await _read(request)
    return await beside(request, lambda: parse_json(_text(body)), len(body))


async def _read(request: Request) -> bytes:
    content = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content != "application/json":
        # Also what keeps pages of other sites out: a browser asks before it sends this type across sites.
        raise ApiError(415, f"the body must be application/json, not {content[:80] or 'without a type'}")
    coding = request.headers.get("content-encoding", "").strip().lower()
    if coding not in ("", "identity"):
        raise ApiError(415, f"the body must come as it is, not in the content-encoding {coding[:80]}")
    return await _body(request, state_of(request).config.max_body)


async def beside(client: HTTPConnection, work: Callable[[], T], size: int | None = None) -> T:
    """Work on what a client has sent, off the loop if that is long. `size`: of what has just come."""
    if size is not None:
        client.state.sends_long = size > _LONG
    return await state_of(client).engine.read(work) if getattr(client.state, "sends_long", False) else work()


def parse_json(text: str) -> Any:
    """What a client sent as JSON, if it is, and not nested too deep."""
    try:
        value = json.loads(text, parse_constant=_no_number)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise ApiError(400, f"this is not JSON: {error}") from None
    _check_form(value)
    return value


async def _body(request: Request, most: int) -> bytes:
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced[:20]) > most:
        raise _too_large(most)
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > most:
                    raise _too_large(most)
    except TimeoutError:
        raise ApiError(408, f"the body did not come within {_BODY_SECONDS:g} s", close=True) from None
    except ClientDisconnect:
        raise ApiError(GONE, "the client left in the middle of the body") from None
    return bytes(body)


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is not UTF-8: a bad byte at {error.start}") from None


def _check_form(value: Any) -> None:
    """Neither too deep nor too wide: whoever checks a field after the other has an end."""
    level = [value] if isinstance(value, dict | list) else []
    parts = 0
    for _ in range(MAX_DEPTH):
        if not level:
            return
        if any(isinstance(each, dict) and len(each) > MAX_MEMBERS for each in level):
            raise ApiError(400, f"this JSON has an object of more than {MAX_MEMBERS} members")
        if (parts := parts + len(level)) > MAX_PARTS:
            raise ApiError(400, f"this JSON has more than {MAX_PARTS} lists and objects")
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
    if level:
        raise _too_deep()


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _too_deep() -> ApiError:
    return ApiError(400, f"this JSON is nested more than {MAX_DEPTH} deep")


def _too_large(most: int) -> ApiError:
    what = f"the body has more than {most} bytes; --max-body of minichat serve lets longer ones in"
    return ApiError(413, what, close=True)
