"""How much one client may ask for: bytes, depth of JSON, choices at once, time to say it."""

import asyncio
import json
from collections import Counter
from typing import Any

from fastapi import Request
from starlette.requests import ClientDisconnect

from engine.server.config import MAX_BODY, MAX_DEPTH, MAX_MEMBERS
from engine.server.openai.errors import ApiError

GONE = 499  # the status of an answer that nobody is there to read
_BODY_SECONDS = 60.0
_RETRY_AFTER = 1  # seconds


async def read_json(request: Request) -> Any:
    """The body: JSON of a sound size and depth."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # Also what keeps pages of other sites out: a browser asks before it sends this type across sites.
        raise ApiError(415, f"the body must be application/json, not {kind[:80] or 'without a type'}")
    try:
        text = (await _body(request)).decode()
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is not UTF-8: a bad byte at {error.start}") from None
    return parse_json(text)


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


async def _body(request: Request) -> bytes:
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced[:20]) > MAX_BODY:
        raise _too_large()
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY:
                    raise _too_large()
    except TimeoutError:
        raise ApiError(408, f"the body did not come within {_BODY_SECONDS:g} s", close=True) from None
    except ClientDisconnect:
        raise ApiError(GONE, "the client left in the middle of the body") from None
    return bytes(body)


def _check_form(value: Any) -> None:
    """Neither too deep nor too wide: whoever checks a field after the other has an end."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        if not level:
            return
        if any(isinstance(each, dict) and len(each) > MAX_MEMBERS for each in level):
            raise ApiError(400, f"this JSON has an object of more than {MAX_MEMBERS} members")
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


def _too_large() -> ApiError:
    return ApiError(413, f"the body has more than {MAX_BODY} bytes", close=True)


class Gate:
    """Counts the choices in flight, over all clients and of each key."""

    def __init__(self, most: int, most_of_a_key: int) -> None:
        self.most, self.most_of_a_key = most, most_of_a_key
        self._held: Counter[bytes] = Counter()

    @property
    def in_flight(self) -> int:
        return self._held.total()

    def enter(self, key: bytes, choices: int) -> "Ticket":
        if choices > min(self.most, self.most_of_a_key):  # then waiting does not help
            most = min(self.most, self.most_of_a_key)
            raise ApiError(400, f"this wants {choices} places at once, and a key has {most} here")
        if self._held[key] + choices > self.most_of_a_key:
            raise ApiError(
                429,
                f"this key has {self._held[key]} choices in flight, and may have {self.most_of_a_key}; "
                "wait for some of them",
                code="rate_limit_exceeded",
                retry_after=_RETRY_AFTER,
            )
        if self._held.total() + choices > self.most:
            raise ApiError(
                503,
                f"{self._held.total()} choices are in flight, and the server takes {self.most}; come later",
                code="overloaded",
                retry_after=_RETRY_AFTER,
            )
        self._held[key] += choices
        return Ticket(self, key, choices)

    def leave(self, key: bytes, choices: int) -> None:
        self._held[key] -= choices
        if not self._held[key]:
            del self._held[key]


class Ticket:
    """A place for some choices; given back once."""

    def __init__(self, gate: Gate, key: bytes, choices: int) -> None:
        self._gate, self._key, self._choices = gate, key, choices

    def give_back(self) -> None:
        self._gate.leave(self._key, self._choices)
        self._choices = 0
