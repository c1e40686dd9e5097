"""Structured output, requested with the fields of OpenAI's clients and of vLLM's."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest
from pydantic import BaseModel

from tests.server.conftest import MODEL, Served, saying, serving, user
from tests.server.requests.test_fields import CHAT, TEXT, refused
from tests.server.tools.test_tools import CALL, QWEN, THINKING, WEATHER

SCHEMA = {
    "type": "object",
    "properties": {"town": {"type": "string", "minLength": 3, "maxLength": 9}, "people": {"type": "integer"}},
    "required": ["town", "people"],
    "additionalProperties": False,
}
NAMED = {"type": "json_schema", "json_schema": {"name": "town", "schema": SCHEMA, "strict": True}}


def matches(text: str, schema: Any = SCHEMA) -> bool:
    return jsonschema_rs.is_valid(schema, json.loads(text))


def reply_text(client: httpx.Client, route: str, **fields: Any) -> str:
    start = {"messages": user("hi")} if route == CHAT else {"prompt": "hi", "max_tokens": 100}
    answer = client.post(route, json={**start, **fields})
    assert answer.status_code == 200, answer.text
    [choice] = answer.json()["choices"]
    assert choice["finish_reason"] == "stop"
    text: str = choice["message"]["content"] if route == CHAT else choice["text"]
    return text


@pytest.mark.parametrize("route", [CHAT, TEXT])
class TestForms:
    @pytest.mark.parametrize(
        "fields",
        [
            {"response_format": NAMED},
            {"structured_outputs": {"json": SCHEMA}},
            {"structured_outputs": {"json": json.dumps(SCHEMA)}},
            {"guided_json": SCHEMA},
            {"guided_json": json.dumps(SCHEMA)},
            {"response_format": {"type": "text"}, "guided_json": SCHEMA},
        ],
    )
    def test_a_schema(self, client: httpx.Client, route: str, fields: dict[str, Any]) -> None:
        assert matches(reply_text(client, route, **fields))

    @pytest.mark.parametrize(
        "fields",
        [
            {"response_format": {"type": "json_object"}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "any"}}},
            {"structured_outputs": {"json_object": True}},
        ],
    )
    def test_any_object(self, client: httpx.Client, route: str, fields: dict[str, Any]) -> None:
        assert matches(reply_text(client, route, **fields), {"type": "object"})

    @pytest.mark.parametrize(
        "fields", [{"structured_outputs": {"regex": "x{3,5}y"}}, {"guided_regex": "x{3,5}y"}]
    )
    def test_a_regex(self, client: httpx.Client, route: str, fields: dict[str, Any]) -> None:
        assert re.fullmatch("x{3,5}y", reply_text(client, route, **fields))

    @pytest.mark.parametrize(
        "fields",
        [{"structured_outputs": {"grammar": 'start: x "y"\nx: /x{1,3}/'}}, {"guided_grammar": 'start: "xy"'}],
    )
    def test_a_grammar_in_lark(self, client: httpx.Client, route: str, fields: dict[str, Any]) -> None:
        assert re.fullmatch("x+y", reply_text(client, route, **fields))

    @pytest.mark.parametrize(
        "fields", [{"structured_outputs": {"choice": ["no", "yes"]}}, {"guided_choice": ["no", "yes"]}]
    )
    def test_a_choice(self, client: httpx.Client, route: str, fields: dict[str, Any]) -> None:
        assert reply_text(client, route, **fields) in ("no", "yes")


def test_the_client_parses_it_into_a_model(served: Served) -> None:
    class Town(BaseModel):
        town: str
        people: int

    client = served.openai
    whole = client.chat.completions.parse(model=MODEL, messages=user("hi"), response_format=Town)
    assert isinstance(whole.choices[0].message.parsed, Town)
    with client.chat.completions.stream(model=MODEL, messages=user("hi"), response_format=Town) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Town)


def test_a_reply_at_its_limit_ends_with_length(client: httpx.Client) -> None:
    cut = client.post(CHAT, json={"messages": user("hi"), "response_format": NAMED, "max_tokens": 4}).json()
    assert cut["choices"][0]["finish_reason"] == "length"


def ids_of(served: Served, text: str) -> list[int]:
    """Return every token whose text is a prefix of this text."""
    vocab = range(served.engine.limits.vocab)
    pieces = zip(vocab, served.state.host.pieces(vocab), strict=True)
    return [token for token, piece in pieces if piece and text.startswith(piece.decode(errors="replace"))]


@pytest.mark.parametrize("route", [CHAT, TEXT])
@pytest.mark.parametrize("stream", [False, True])
def test_stop_ids_that_leave_no_first_token_are_refused(
    served: Served, client: httpx.Client, route: str, stream: bool
) -> None:
    start = {"messages": user("hi")} if route == CHAT else {"prompt": "hi"}
    body = {**start, "guided_regex": "xyz", "stop_token_ids": ids_of(served, "xyz"), "stream": stream}
    error = refused(client.post(route, json=body))
    assert error["param"] == "stop_token_ids" and "no token is left" in error["message"]


@pytest.mark.parametrize("route", [CHAT, TEXT])
def test_stop_ids_that_leave_no_next_token_are_a_client_error(
    served: Served, client: httpx.Client, route: str
) -> None:
    start = {"messages": user("hi")} if route == CHAT else {"prompt": "hi"}
    body = {**start, "guided_regex": "x~~y", "stop_token_ids": ids_of(served, "~~y")}
    error = refused(client.post(route, json=body))
    assert (error["type"], error["param"]) == ("invalid_request_error", "stop_token_ids")
    assert "no token is left" in error["message"]

    streamed = client.post(route, json=body | {"stream": True})
    lines = streamed.text.split("\n\n")
    assert streamed.status_code == 200 and lines[-2:] == ["data: [DONE]", ""]
    assert json.loads(lines[-3].removeprefix("data: ")) == {"error": error}
    assert '"x"' in lines[0], "the text before the error is missing"
    assert served.becomes_idle()


FIELD = "response_format.json_schema.schema"


def schema(**parts: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": parts}}}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        (schema(type="foo"), FIELD, "is not a usable JSON schema: Invalid type: foo"),
        (schema(type="array", uniqueItems=True), FIELD, "uniqueItems"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "is missing"),
        (
            {"response_format": {"type": "text", "json_schema": NAMED["json_schema"]}},
            "response_format.type",
            "requires type json_schema",
        ),
        ({"guided_regex": "("}, "guided_regex", "guided_regex: invalid regex: unclosed group"),
        ({"guided_json": "{"}, "guided_json", "is not a JSON schema"),
        ({"guided_choice": []}, "guided_choice", ""),
        ({"guided_choice": [""]}, "guided_choice[0]", ""),
        ({"guided_grammar": "root: ("}, "guided_grammar", "invalid Lark grammar: "),
        ({"guided_grammar": "root ::= x"}, "guided_grammar", "invalid GBNF grammar: Rule 'x' not found"),
        ({"guided_grammar": 'root ::= "x" ('}, "guided_grammar", "invalid GBNF grammar: Expected ')'"),
        ({"guided_decoding_backend": "x"}, "guided_decoding_backend", "not a known"),
        ({"structured_outputs": {}}, "structured_outputs", "is empty"),
        ({"structured_outputs": {"grammar": "x"}}, "structured_outputs.grammar", "invalid Lark grammar: "),
        ({"structured_outputs": {"whitespace_pattern": "x"}}, "structured_outputs.whitespace_pattern", ""),
        ({"structured_outputs": {"regex": "(a)\\1"}}, "structured_outputs.regex", "backreferences"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "cannot both"),
        ({"response_format": NAMED, "guided_regex": "a"}, "guided_regex", "cannot both"),
    ],
)
def test_an_error_names_the_field(client: httpx.Client, fields: Any, param: str, words: str) -> None:
    error = refused(client.post(CHAT, json={"messages": user("hi"), **fields}))
    assert error["param"] == param
    assert words in error["message"]


def test_with_tools_a_reply_matches_the_schema_or_calls(tmp_path: Path) -> None:
    fields = {"response_format": NAMED, "tools": WEATHER}
    with serving(saying(tmp_path, "x", QWEN)) as served, served.client() as client:
        assert matches(reply_text(client, CHAT, **fields, tool_choice="none"))
        reply = client.post(CHAT, json={"messages": user("hi"), **fields}).json()["choices"][0]
        assert matches(reply["message"]["content"])
    call = saying(tmp_path, f"<tool_call>\n{CALL}\n</tool_call>", QWEN)
    with serving(call) as served, served.client() as client:
        reply = client.post(CHAT, json={"messages": user("hi"), **fields}).json()["choices"][0]
        assert reply["finish_reason"] == "tool_calls" and not reply["message"]["content"]


def test_json_is_compact_unless_the_request_allows_any_white_space(tmp_path: Path) -> None:
    said = '{\n  "town": "Rome",\n  "people": 3\n}'
    loose: list[dict[str, Any]] = [
        {"response_format": NAMED, "disable_any_whitespace": False},
        {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": False}},
    ]
    compact: list[dict[str, Any]] = [
        {"response_format": NAMED},
        {"response_format": NAMED, "disable_any_whitespace": True},
        {"structured_outputs": {"json": SCHEMA}},
    ]
    with serving(saying(tmp_path, said)) as served, served.client() as client:
        assert {reply_text(client, CHAT, **fields) for fields in loose} == {said}
        for fields in compact:
            assert not re.search(r"\n|  ", text := reply_text(client, CHAT, **fields)) and matches(text)


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"response_format": {"type": "json_object"}}, r"\{.*\}"),
        ({"guided_regex": "[a/]{2}\\/b"}, r"[a/]{2}/b"),
        ({"guided_choice": ["yes/no", "mädchen"]}, "yes/no|mädchen"),
    ],
)
def test_the_format_applies_after_reasoning_opened_by_the_template(
    tmp_path: Path, fields: dict[str, Any], pattern: str
) -> None:
    with (
        serving(saying(tmp_path, "Let me see. {\n</think>\n\n", THINKING)) as served,
        served.client() as client,
    ):
        reply = client.post(CHAT, json={"messages": user("hi"), **fields}).json()["choices"][0]
        assert reply["message"]["reasoning_content"] == "Let me see. {"
        assert re.fullmatch(pattern, reply["message"]["content"])
        error = refused(client.post(CHAT, json={"messages": user("hi"), "guided_grammar": 'start: "x"'}))
        assert "part of another" in error["message"] and error["param"] == "guided_grammar"
