"""Errors about nested values: under the client's names, and with values as JSON writes them."""

import json
from typing import Any

import httpx
import pytest

from tests.server.conftest import MODEL, user

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
LONE = "\ud800"
CLAUDE: dict[str, Any] = {"model": MODEL, "max_tokens": 1}


def error_of(client: httpx.Client, route: str, body: dict[str, Any]) -> str:
    headers = {"content-type": "application/json"}
    answer = client.post(route, content=json.dumps(body), headers=headers)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    return error if isinstance(error, str) else str(error["message"])


@pytest.mark.parametrize("value", [5, LONE])
@pytest.mark.parametrize("name", ["thinking", "tool_name"])
def test_ollamas_names_in_a_message(client: httpx.Client, name: str, value: object) -> None:
    message = {"role": "assistant", "content": "a", name: value}
    error = error_of(client, "/api/chat", {"model": MODEL, "messages": [message]})
    assert error.startswith(f"messages[0].{name} must be ")


@pytest.mark.parametrize("given", [{"k": LONE}, {LONE: 1}])
def test_the_input_of_anthropics_tool_use(client: httpx.Client, given: dict[str, Any]) -> None:
    called = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": given}]}
    body = CLAUDE | {"system": "s", "messages": [*user("x"), called, *user("y")]}
    assert "messages[1].content[0].input" in error_of(client, "/v1/messages", body)


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"type": "function", "function": None}, "tool_choice.function: must be an object, got null"),
        ({"type": "function", "function": {"name": None}}, "tool_choice.function.name: must be a"),
        ({"type": 5}, "tool_choice.type: "),
        (5, "tool_choice: must be 'auto', 'none' or 'required'"),
        ([], "tool_choice: must be 'auto', 'none' or 'required'"),
    ],
)
def test_the_part_of_a_tool_choice(client: httpx.Client, choice: object, words: str) -> None:
    body = {"messages": user("?"), "tool_choice": choice}
    assert error_of(client, CHAT, body).startswith(words)


@pytest.mark.parametrize("route", ["/engine/replies", "/engine/layout"])
@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"role": None, "content": "x"}, ", not null"),
        ({"role": True, "content": "x"}, ", not true"),
        (
            {"role": "user", "content": None},
            "messages[0].content must be text or a list of text parts, not null",
        ),
        ({"role": "user", "content": True}, ", not true"),
        ({"role": "user", "content": [None]}, ", not null"),
        (
            {"role": "user", "content": [{"type": "text", "text": None}]},
            ', not {"type": "text", "text": null}',
        ),
        ({"role": "assistant", "content": None, "tool_calls": [None]}, ", not [null]"),
    ],
)
def test_values_are_shown_as_json(client: httpx.Client, route: str, message: Any, words: str) -> None:
    assert error_of(client, route, {"prompt": [message]}).endswith(words)


@pytest.mark.parametrize(("field", "only"), [("skip_special_tokens", True), ("add_special_tokens", False)])
def test_a_field_with_one_value(client: httpx.Client, field: str, only: bool) -> None:
    error = error_of(client, CHAT, {"messages": user("?"), field: not only})
    assert error == f"{field}: must be {json.dumps(only)}, got {json.dumps(not only)}"


@pytest.mark.parametrize("effort", ["utmost", 5, ["low"]])
def test_an_effort_that_does_not_exist(client: httpx.Client, effort: object) -> None:
    body = {"input": "?", "reasoning": {"effort": effort}, "max_output_tokens": 1}
    assert error_of(client, RESPONSES, body).startswith("reasoning.effort: ")


def test_other_members_of_reasoning_are_returned(client: httpx.Client) -> None:
    body = {"input": "?", "reasoning": {"effort": "low", "later": 1}, "max_output_tokens": 1}
    found = client.post(RESPONSES, json=body).json()["reasoning"]
    assert found == {"effort": "low", "later": 1}
