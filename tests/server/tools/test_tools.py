"""Tool calls and reasoning are separated from text, however it is split, and sent as clients expect."""

import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from engine.server.tool_calls.formats import reader, style
from engine.text.reasoning import Thoughts
from tests.lazily import lazy
from tests.server.calls import cuts, read_all, rebuilt
from tests.server.conftest import MODEL, saying, serving, user

openai = lazy("openai")

QWEN = (
    "{% if tools %}Tools:{% for tool in tools %} {{ tool | tojson }}{% endfor %}"
    " Answer with <tool_call>JSON</tool_call>.{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{% for call in m.tool_calls or [] %}"
    "<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}\n{% endfor %}assistant:"
)
LLAMA = (
    '{% if tools is defined and tools %}Respond with {"name": n, "parameters": p}:'
    "{% for t in tools %} {{ t | tojson }}{% endfor %}{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
)
THINKING = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: <think>\n"
WEATHER: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"town": {"type": "string"}}},
        },
    }
]
CALL = '{"name": "weather", "arguments": {"town": "Köln"}}'
BARE = '{"name": "weather", "parameters": {"town": "Köln"}}'


@contextmanager
def client_of(folder: Path, text: str, template: str) -> Iterator[Any]:
    with serving(saying(folder, text, template)) as served:
        yield served.openai


def ask(client: Any, stream: bool = False, **more: Any) -> Any:
    options: dict[str, Any] = {"model": MODEL, "messages": user("weather in Köln?"), "stream": stream} | more
    return client.chat.completions.create(**options)


class TestReading:
    @pytest.mark.parametrize(
        ("text", "plain", "calls"),
        [
            (f"<tool_call>\n{CALL}\n</tool_call>", "", 1),
            (
                f"Let me look.\n<tool_call>\n{CALL}\n</tool_call>\n<tool_call>{CALL}</tool_call>\n",
                "Let me look.",
                2,
            ),
            (f"<tool_call>{CALL}", "", 1),  # the closing tag may be missing at the end
            ("no call at all  \n", "no call at all  \n", 0),
            ("a < b and <tool", "a < b and <tool", 0),
            ("<tool_call>not JSON</tool_call> so", "<tool_call>not JSON</tool_call> so", 0),
            ('<tool_call>{"name": 5}</tool_call>', '<tool_call>{"name": 5}</tool_call>', 0),
            ("<tool_call>" + "[" * 9000 + "</tool_call>", "<tool_call>" + "[" * 9000 + "</tool_call>", 0),
            ("", "", 0),
        ],
    )
    @settings(max_examples=25)
    @given(at=st.lists(st.integers(0, 10_000), max_size=12))
    def test_tagged(self, text: str, plain: str, calls: int, at: list[int]) -> None:
        found = read_all(reader("qwen"), cuts(text, at))
        assert found == (plain, [("weather", '{"town": "Köln"}')] * calls)

    @pytest.mark.parametrize(
        ("text", "plain", "calls"),
        [
            (BARE, "", 1),
            (f"  {BARE}; {BARE}\n", "", 2),
            ("It is warm.", "It is warm.", 0),
            ('{"name": "weather"', '{"name": "weather"', 0),
            ('{"no": "call"}', '{"no": "call"}', 0),
            (f"{BARE} and more", " and more", 1),
            (f'{BARE}; {{"no": 1}}', '; {"no": 1}', 1),
            (" \n", " \n", 0),
        ],
    )
    @settings(max_examples=25)
    @given(at=st.lists(st.integers(0, 200), max_size=12))
    def test_bare(self, text: str, plain: str, calls: int, at: list[int]) -> None:
        assert read_all(reader("llama"), cuts(text, at)) == (plain, [("weather", '{"town": "Köln"}')] * calls)

    @pytest.mark.parametrize(
        ("text", "opened", "reasoning", "answer"),
        [
            ("<think>\nhm, so\n\n</think>\n\nYes.\n", False, "hm, so", "Yes.\n"),
            ("\n<think>a</think>b", False, "a", "b"),
            ("hm, so\n</think>\nYes.", True, "hm, so", "Yes."),
            ("<think>never done </thin", False, "never done </thin", ""),
            ("plain <think>text</think>", False, "", "plain <think>text</think>"),
            ("  <thin", False, "", "  <thin"),
            ("<think></think>b", False, "", "b"),
            ("", True, "", ""),
        ],
    )
    @settings(max_examples=25)
    @given(at=st.lists(st.integers(0, 200), max_size=12))
    def test_thoughts(self, text: str, opened: bool, reasoning: str, answer: str, at: list[int]) -> None:
        thoughts = Thoughts(opened=opened)
        pairs = [thoughts.push(piece) for piece in cuts(text, at)] + [thoughts.flush()]
        assert ("".join(a for a, _ in pairs), "".join(b for _, b in pairs)) == (reasoning, answer)

    @settings(max_examples=25)
    @given(
        st.recursive(
            st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
        )
    )
    def test_any_json_value_in_place_of_a_call_is_handled(self, value: Any) -> None:
        for text in (json.dumps(value), json.dumps({"name": "f", "arguments": value})):
            plain, calls = read_all(reader("qwen"), [f"<tool_call>{text}</tool_call>"])
            assert not plain or not calls
            assert [json.loads(each) for _, each in calls] == [value] * len(calls)
            assert bool(calls) == (isinstance(value, dict) and text != json.dumps(value))


class TestStyle:
    def test_the_style_of_small_templates(self) -> None:
        assert style({"default": QWEN}) == "qwen"
        assert style({"default": LLAMA}) == "llama"
        assert style({"default": "{{ messages }}"}) is None
        assert style({"default": "plain", "tool_use": QWEN}) == "qwen"
        assert style({"default": "{% if tools %}Be helpful.{% endif %}"}) is None
        assert style({"default": "{% if tools %}<tool_call><function=name>{% endif %}"}) is None
        assert style({}) is None

    def test_the_style_of_real_templates(self, shared: Path, tmp_path: Path) -> None:
        found = {}
        for name in ("qwen3", "llama3-instruct"):
            with tarfile.open(shared / "tokenizers" / f"{name}.tar.xz") as packed:
                packed.extract(f"{name}/tokenizer_config.json", tmp_path, filter="data")
            settings = json.loads((tmp_path / name / "tokenizer_config.json").read_text())
            found[name] = style({"default": settings["chat_template"]})
        assert found == {"qwen3": "qwen", "llama3-instruct": None}


class TestOverHttp:
    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize(
        ("template", "text"), [(QWEN, f"Well.\n<tool_call>\n{CALL}\n</tool_call>"), (LLAMA, BARE)]
    )
    def test_calls_are_returned(self, tmp_path: Path, template: str, text: str, stream: bool) -> None:
        with client_of(tmp_path, text, template) as client:
            answer = ask(client, stream, tools=WEATHER)
            if stream:
                chunks = list(answer)
                calls = rebuilt(chunks)
                content = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
                finish = chunks[-1].choices[0].finish_reason
            else:
                calls = answer.choices[0].message.tool_calls
                content = answer.choices[0].message.content or ""
                finish = answer.choices[0].finish_reason
            [call] = calls
            assert call.function.name == "weather"
            assert json.loads(call.function.arguments) == {"town": "Köln"}
            assert call.id.startswith("call_")
            assert content == ("Well." if template is QWEN else "")
            assert finish == "tool_calls"

    def test_definitions_and_results_reach_the_template(self, tmp_path: Path) -> None:
        with serving(saying(tmp_path, "fine", QWEN)) as served:
            client = served.openai
            plain, tooled = (ask(client, **more).usage.prompt_tokens for more in ({}, {"tools": WEATHER}))
            assert tooled > plain + 40
            assert ask(client, tools=WEATHER, tool_choice="none").usage.prompt_tokens == plain
            call = {
                "id": "call_1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"town": "K"}'},
            }
            conversation = [
                *user("weather?"),
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_1", "content": "warm"},
            ]
            reply = ask(client, messages=conversation, tools=WEATHER)
            assert reply.choices[0].message.content == "fine"
            assert reply.choices[0].finish_reason == "stop"

    def test_a_lone_surrogate_in_a_call(self, tmp_path: Path) -> None:
        text = '<tool_call>{"name": "weather", "arguments": {"town": "\\ud800"}}</tool_call>'
        with client_of(tmp_path, text, QWEN) as client:
            for stream in (False, True):
                answer = ask(client, stream, tools=WEATHER)
                [call] = rebuilt([*answer]) if stream else answer.choices[0].message.tool_calls
                assert json.loads(call.function.arguments) == {"town": "?"}

    def test_without_tools_the_text_is_unchanged(self, tmp_path: Path) -> None:
        text = f"<tool_call>{CALL}</tool_call>"
        with client_of(tmp_path, text, QWEN) as client:
            reply = ask(client)
            assert reply.choices[0].message.content == text
            assert reply.choices[0].finish_reason == "stop"

    @pytest.mark.parametrize(
        ("tool", "param"),
        [
            ({"type": "function"}, "tools[0]"),
            ({"type": "function", "function": {"name": "a b"}}, "tools[0].function.name"),
            ({"type": "retrieval"}, "tools[0]"),
            ({"type": "function", "function": {"name": "f", "strict": 1}}, "tools[0].function.strict"),
            ({"type": "function", "function": {"name": "f"}, "cost": 5}, "tools[0].cost"),
            (
                {"type": "function", "function": {"name": "f", "parameters": 5}},
                "tools[0].function.parameters",
            ),
            (
                {"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}},
                "tools[0].function.parameters",
            ),
            (
                {"type": "function", "function": {"name": "f", "description": 5}},
                "tools[0].function.description",
            ),
            ({"type": "function", "function": {"name": "f", "returns": 5}}, "tools[0].function.returns"),
        ],
    )
    def test_the_error_for_a_bad_tool_names_the_field(
        self, qwen_like: Any, tool: dict[str, Any], param: str
    ) -> None:
        with pytest.raises(openai.BadRequestError) as refused:
            ask(qwen_like, tools=[tool])
        assert refused.value.param == param

    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("opened", [False, True])
    def test_reasoning_has_its_own_field(self, tmp_path: Path, stream: bool, opened: bool) -> None:
        text = ("" if opened else "<think>\n") + "It may rain.\n</think>\n\nTake a coat."
        with client_of(tmp_path, text, THINKING if opened else QWEN) as client:
            answer = ask(client, stream)
            parts = [chunk.choices[0].delta for chunk in answer] if stream else [answer.choices[0].message]
            reasoning = "".join(getattr(part, "reasoning_content", None) or "" for part in parts)
            content = "".join(part.content or "" for part in parts)
            assert (reasoning, content) == ("It may rain.", "Take a coat.")


@pytest.fixture(scope="module")
def qwen_like(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with client_of(tmp_path_factory.mktemp("qwen"), "fine", QWEN) as client:
        yield client


def function(name: str, strict: bool | None = None, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": [*properties]}
    parts = {"name": name, "parameters": schema | {"additionalProperties": False}, "strict": strict}
    return {"type": "function", "function": parts}


TOWN = function("weather", town={"type": "string", "minLength": 2, "maxLength": 8})
HOUR = function("clock", hour={"type": "integer", "minimum": 10, "maximum": 23})
NAMED: dict[str, Any] = {"type": "function", "function": {"name": "clock"}}


def calls_in(answer: Any) -> list[tuple[str, Any]]:
    [choice] = answer.choices
    calls = choice.message.tool_calls or []
    assert (choice.finish_reason == "tool_calls") == bool(calls)
    return [(call.function.name, json.loads(call.function.arguments)) for call in calls]


class TestForced:
    """A model that would answer with text must call a tool, with arguments that match the schema."""

    @pytest.mark.parametrize("template", [QWEN, LLAMA], ids=["qwen", "llama"])
    def test_required(self, tmp_path: Path, template: str) -> None:
        with client_of(tmp_path, "I would rather talk.", template) as client:
            answer = ask(client, tools=[TOWN, HOUR], tool_choice="required", parallel_tool_calls=False)
            assert not answer.choices[0].message.content
            [(name, arguments)] = calls_in(answer)
            assert name in ("weather", "clock") and len(arguments) == 1
            chunks = list(ask(client, True, tools=[TOWN], tool_choice="required", parallel_tool_calls=False))
            assert chunks[-1].choices[0].finish_reason == "tool_calls"
            [call] = rebuilt(chunks)
            assert 2 <= len(json.loads(call.function.arguments)["town"]) <= 8

    @pytest.mark.parametrize("template", [QWEN, LLAMA], ids=["qwen", "llama"])
    def test_a_named_tool(self, tmp_path: Path, template: str) -> None:
        with client_of(tmp_path, "I would rather talk.", template) as client:
            answer = ask(client, tools=[TOWN, HOUR], tool_choice=NAMED, parallel_tool_calls=False)
            [(name, arguments)] = calls_in(answer)
            assert name == "clock" and 10 <= arguments["hour"] <= 23

    def test_several(self, tmp_path: Path) -> None:
        two = f"<tool_call>\n{CALL}\n</tool_call>\n<tool_call>\n{CALL}\n</tool_call>"
        with client_of(tmp_path, two, QWEN) as client:
            assert len(calls_in(ask(client, tools=WEATHER, tool_choice="required"))) == 2
            assert len(calls_in(ask(client, tools=WEATHER))) == 2
            assert len(calls_in(ask(client, tools=WEATHER, parallel_tool_calls=False))) == 1

    @pytest.mark.parametrize(
        ("template", "text"),
        [(QWEN, f"Let me see.\n<tool_call>\n{CALL}\n</tool_call>"), (LLAMA, BARE)],
        ids=["qwen", "llama"],
    )
    def test_a_strict_tool_is_called_by_its_schema_or_not_at_all(
        self, tmp_path: Path, template: str, text: str
    ) -> None:
        hour = {"type": "integer", "minimum": 10, "maximum": 23}
        strict = function("weather", strict=True, hour=hour)
        with client_of(tmp_path, text, template) as client:
            [(name, arguments)] = calls_in(ask(client, tools=[strict]))
            assert name == "weather" and 10 <= arguments["hour"] <= 23  # the model's own text had a town
        with client_of(tmp_path, "It is warm < there.", template) as client:
            answer = ask(client, tools=[strict])
            assert calls_in(answer) == []
            assert answer.choices[0].message.content.startswith("It is warm < there.")

    def test_after_reasoning(self, tmp_path: Path) -> None:
        template = QWEN.replace("assistant:", "assistant: <think>\n")
        with client_of(tmp_path, "So a <tool_call>?\n</think>\n\nNo.", template) as client:
            answer = ask(client, tools=[HOUR], tool_choice="required", parallel_tool_calls=False)
            assert answer.choices[0].message.reasoning_content == "So a <tool_call>?"
            [(name, _)] = calls_in(answer)
            assert name == "clock"

    def test_an_unsupported_schema_is_refused_if_strict(self, qwen_like: Any) -> None:
        odd = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "maxItems": 1}
        lenient, strict = (function("f", kind, x=odd) for kind in (False, True))
        answer = ask(qwen_like, tools=[lenient], tool_choice="required", parallel_tool_calls=False)
        assert [name for name, _ in calls_in(answer)] == ["f"]
        with pytest.raises(openai.BadRequestError, match="uniqueItems") as refused:
            ask(qwen_like, tools=[strict])
        assert refused.value.param == "tools[0]"

    def test_a_schema_that_is_none_is_refused_as_one_of_the_tools(self, qwen_like: Any) -> None:
        """The client has written no grammar, and may have a format that is fine."""
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
        for more in ({}, {"response_format": form}):
            with pytest.raises(openai.BadRequestError, match="the schema of function 'f'") as refused:
                ask(qwen_like, tools=[function("f", True, x=1)], tool_choice="required", **more)
            assert refused.value.param == "tools[0]" and "Lark" not in str(refused.value)

    @pytest.mark.parametrize(
        ("fields", "param", "words"),
        [
            (
                {"tool_choice": {"type": "function", "function": {"name": "x"}}},
                "tool_choice",
                "no tool named",
            ),
            ({"tool_choice": "required", "tools": []}, "tool_choice", "no tools"),
            ({"tool_choice": "required", "extra_body": {"num_beams": 2}}, "tool_choice", "beams"),
        ],
    )
    def test_a_bad_tool_choice_is_refused(
        self, qwen_like: Any, fields: dict[str, Any], param: str, words: str
    ) -> None:
        with pytest.raises(openai.BadRequestError, match=words) as refused:
            ask(qwen_like, **{"tools": [TOWN], **fields})
        assert refused.value.param == param

    def test_the_client_parses_arguments_into_a_model(self, qwen_like: Any) -> None:
        class Clock(BaseModel):
            hour: int

        options: dict[str, Any] = {"model": MODEL, "messages": user("late?"), "tool_choice": "required"}
        tools = [openai.pydantic_function_tool(Clock)]
        answer = qwen_like.chat.completions.parse(**options, tools=tools, parallel_tool_calls=False)
        [call] = answer.choices[0].message.tool_calls or []
        assert isinstance(call.function.parsed_arguments, Clock)
        with qwen_like.chat.completions.stream(**options, tools=tools, parallel_tool_calls=False) as stream:
            for _ in stream:
                pass
            [call] = stream.get_final_completion().choices[0].message.tool_calls or []
        assert isinstance(call.function.parsed_arguments, Clock)
