"""A function whose schema is bad: each API names the tool, not a grammar that the client never wrote."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from engine.api.errors import BadParams
from engine.api.params import Grammar
from engine.grammar.source import check
from tests.server.conftest import MODEL, saying, serving, user
from tests.server.tools.test_tools import QWEN

GOOD: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}
ODD: dict[str, Any] = {"type": "object", "properties": {"x": {"type": "objekt"}}}
FORM = {"type": "object"}
NAMED = "tools[1]: the schema of function 'bad': Invalid type: objekt"


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with serving(saying(tmp_path_factory.mktemp("qwen"), "fine", QWEN)) as one, one.client() as client:
        yield client


def nested(schema: Any) -> list[Any]:
    return [
        {"type": "function", "function": {"name": name, "parameters": each, "strict": True}}
        for name, each in (("good", GOOD), ("bad", schema))
    ]


def flat(schema: Any, member: str, **more: Any) -> list[Any]:
    return [
        {"name": name, member: each, "strict": True, **more} for name, each in (("g", GOOD), ("bad", schema))
    ]


def requests(schema: Any) -> dict[str, list[dict[str, Any]]]:
    """By route: bodies without a format, with one, and with a function that has to be called."""
    chat = {"messages": user("?"), "tools": nested(schema)}
    claude = {"messages": user("?"), "max_tokens": 9, "tools": flat(schema, "input_schema")}
    form = {"type": "json_schema", "schema": FORM}
    openai_form = {"type": "json_schema", "json_schema": {"name": "n", "schema": FORM}}
    chosen = {"type": "function", "function": {"name": "bad"}}
    responses = {"input": "?", "tools": flat(schema, "parameters", type="function")}
    return {
        "/v1/chat/completions": [
            chat,
            chat | {"response_format": openai_form},
            chat | {"tool_choice": chosen, "stream": True},
        ],
        "/v1/responses": [responses, responses | {"text": {"format": {**form, "name": "n"}}}],
        "/v1/messages": [claude, claude | {"output_config": {"format": form}}],
        "/api/chat": [chat, chat | {"format": FORM}, chat | {"stream": True}],
    }


def message(client: httpx.Client, route: str, body: dict[str, Any]) -> str:
    answer = client.post(
        route,
        content=json.dumps({"model": MODEL, **body}).replace("Infinity", "1e400"),
        headers={"content-type": "application/json"},
    )
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    return error if isinstance(error, str) else str(error["message"])


@pytest.mark.parametrize("route", [*requests(ODD)])
def test_the_tool_is_named(qwen: httpx.Client, route: str) -> None:
    assert {message(qwen, route, body) for body in requests(ODD)[route]} == {NAMED}


@pytest.mark.parametrize("route", [*requests(ODD)])
def test_a_number_that_is_too_large(qwen: httpx.Client, route: str) -> None:
    odd = {"type": "object", "properties": {"x": {"type": "number", "maximum": float("inf")}}}
    for body in requests(odd)[route]:
        found = message(qwen, route, body)
        assert found.startswith("tools[1]") and found.endswith("has a number that is too large: maximum")


@pytest.mark.parametrize(("member", "value"), [("properties", 5), ("required", 5), ("required", ["a", 5])])
def test_a_schema_that_templates_and_call_formats_cannot_read(
    qwen: httpx.Client, member: str, value: Any
) -> None:
    for route, bodies in requests({"type": "object", member: value}).items():
        found = message(qwen, route, bodies[0])
        assert found.startswith("tools[1]") and f".{member} must be" in found


def test_the_format_is_blamed_for_its_own_schema(qwen: httpx.Client) -> None:
    body = {"messages": user("?"), "tools": nested(GOOD), "format": ODD}
    assert message(qwen, "/api/chat", body) == "format: is not a usable JSON schema: Invalid type: objekt"


@pytest.mark.parametrize("text", ['{"maximum": 1e400}', '{"anyOf": [{"minimum": -1e400}]}'])
def test_a_schema_with_a_number_that_is_too_large(text: str) -> None:
    with pytest.raises(BadParams, match="m is a number that is too large"):
        check(Grammar("json", text))
