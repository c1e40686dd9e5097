"""A tool call that a limit cuts is returned as far as it was written, not as text."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api.events import Delta
from engine.api.request import Finish
from engine.server.message_writer import MessageWriter
from engine.server.tool_calls.events import CallBegin
from engine.server.tool_calls.formats import reader
from engine.text.reasoning import Thoughts
from engine.text.tokenizer import Tokenizer
from tests.server.calls import cuts, read_all, rebuilt
from tests.server.conftest import MODEL, saying, serving, user
from tests.server.tools.test_tools import BARE, CALL, LLAMA, QWEN, WEATHER, ask

SENT, BEGUN = '{"town": "Köln"}', '{"town": "Kö'
CUT, BARE_CUT = CALL.removesuffix('ln"}}'), BARE.removesuffix('ln"}}')


@pytest.mark.parametrize(
    ("text", "plain", "arguments"),
    [
        (f"Hm.\n<tool_call>\n{CUT}", "Hm.", [BEGUN]),
        (f"<tool_call>{CALL}</tool_call>\n<tool_call>{CUT}", "", [SENT, BEGUN]),
        (f"<tool_call>{CALL}\n</tool_c", "", [SENT]),
        ('<tool_call>{"name": "weather", "arguments": {"a":1}', "", ['{"a": 1}']),
        ('<tool_call>{"name": "weather", "argu', "", [""]),
        ('<tool_call>{"name": "weather"', "", [""]),
        ('<tool_call>{"name": "wea', '<tool_call>{"name": "wea', []),
        ('<tool_call>{"name": "\\q", ', '<tool_call>{"name": "\\q", ', []),
        ("no call", "no call", []),
    ],
)
@settings(max_examples=10)
@given(at=st.lists(st.integers(0, 200), max_size=6))
def test_tagged(text: str, plain: str, arguments: list[str], at: list[int]) -> None:
    found = read_all(reader("qwen"), cuts(text, at), cut=True)
    assert found == (plain, [("weather", each) for each in arguments])


@pytest.mark.parametrize(
    ("text", "plain", "arguments"),
    [
        (BARE_CUT, "", [BEGUN]),
        (f"{BARE}; {BARE_CUT}", "", [SENT, BEGUN]),
        (f"{BARE}; {BARE[:-1]}", "", [SENT, SENT]),
        ('{"name": "Bob", "age": 5', '{"name": "Bob", "age": 5', []),
        ('{"name": "weather", "para', '{"name": "weather", "para', []),
    ],
)
def test_bare(text: str, plain: str, arguments: list[str]) -> None:
    assert read_all(reader("llama"), [text], cut=True) == (plain, [("weather", each) for each in arguments])


def test_ollama_gets_a_cut_call_without_arguments(tmp_path: Path) -> None:
    """Its clients expect an object."""
    text = f"<tool_call>\n{CALL}\n</tool_call>"
    engine = saying(tmp_path, text, QWEN)
    tokens = len(Tokenizer.load(tmp_path).encode(text[: text.index("ln")]))
    body = {"model": MODEL, "messages": user("?"), "tools": WEATHER, "options": {"num_predict": tokens}}
    with serving(engine) as served, served.client() as client:
        answer = client.post("/api/chat", json={**body, "stream": False}).json()
    [call] = answer["message"]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": {}}
    assert answer["done_reason"] == "length"


def test_a_call_that_begins_in_the_prefix_comes_whole() -> None:
    """The prefix itself is not sent, so the call begins with the first delta."""
    text = f"Hm. <tool_call>{CALL}</tool_call>"
    cut = text.index("Kö")
    writer = MessageWriter(Thoughts(), reader("qwen"), text[:cut])
    part = writer.push([Delta(0, (1,), text[cut:], (), Finish.STOP)])
    assert [(call.name, call.arguments) for call in part.calls] == [("weather", SENT)]
    assert isinstance(part.events[0], CallBegin) and part.content == "" and writer.calls == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("template", "text"), [(QWEN, f"<tool_call>\n{CALL}\n</tool_call>"), (LLAMA, BARE)])
def test_max_tokens(tmp_path: Path, template: str, text: str, stream: bool) -> None:
    engine = saying(tmp_path, text, template)
    tokens = len(Tokenizer.load(tmp_path).encode(text[: text.index("ln")]))
    with serving(engine) as served:
        answer = ask(served.openai, stream, tools=WEATHER, max_tokens=tokens)
        chunks = [*answer] if stream else []
        choices = [chunk.choices[0] for chunk in chunks] if stream else answer.choices
    parts = [choice.delta if stream else choice.message for choice in choices]
    [call] = rebuilt(chunks) if stream else choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == ("weather", BEGUN)
    assert not any(part.content for part in parts)
    assert choices[-1].finish_reason == "length"
