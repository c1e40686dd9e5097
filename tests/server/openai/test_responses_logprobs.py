"""Log-probabilities in the Responses API, whole and streamed, as OpenAI's client reads them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.api.events import Delta, TokenLogprob
from engine.server.openai.responses_api.logprobs import MessageLogprobs
from engine.server.tool_calls.events import CallBegin, ContentPiece, Event, ReasoningPiece
from tests.server.conftest import MODEL, Served, saying, serving, user
from tests.server.openai.test_responses import ROUTE, WEATHER, events_of
from tests.server.requests.test_fields import refused
from tests.server.tools.test_tools import CALL, QWEN, THINKING

INCLUDE: Any = ["message.output_text.logprobs"]


def joined(records: Sequence[Any]) -> str:
    return "".join(each.token if hasattr(each, "token") else each["token"] for each in records)


def test_those_of_a_whole_response_are_those_of_a_chat(served: Served) -> None:
    response = served.openai.responses.create(
        model=MODEL, input="hello", include=INCLUDE, top_logprobs=2, max_output_tokens=6
    )
    assert response.top_logprobs == 2
    part = response.output[0].content[0]
    assert joined(part.logprobs) == part.text != ""
    chat = served.openai.chat.completions.create(
        model=MODEL, messages=user("hello"), logprobs=True, top_logprobs=2, max_tokens=6
    )
    assert [each.model_dump() for each in part.logprobs] == [
        each.model_dump() for each in chat.choices[0].logprobs.content
    ]


def test_a_stream_has_them_with_the_text_they_belong_to(served: Served) -> None:
    with served.openai.responses.stream(model=MODEL, input="hello", include=INCLUDE) as stream:
        events = [*stream]
        [message] = stream.get_final_response().output
    deltas = [each for each in events if each.type == "response.output_text.delta"]
    assert len(deltas) > 1
    [done] = [each for each in events if each.type == "response.output_text.done"]
    found = [one for each in deltas for one in each.logprobs]
    assert all(joined(each.logprobs).startswith(each.delta) for each in deltas)
    assert [each.to_dict() for each in found] == [each.to_dict() for each in done.logprobs]
    [part] = message.content
    assert [each.to_dict() for each in part.logprobs] == [each.to_dict() for each in done.logprobs]
    assert all(each.top_logprobs == [] for each in found)


def test_without_include_there_are_none(client: httpx.Client) -> None:
    for more in {}, {"top_logprobs": 3}, {"include": ["reasoning.encrypted_content"]}:
        answer = client.post(ROUTE, json={"input": "hello"} | more).json()
        assert answer["output"][0]["content"][0]["logprobs"] == []
    assert refused(client.post(ROUTE, json={"input": "x", "top_logprobs": 21}))["param"] == "top_logprobs"


@pytest.mark.parametrize(
    ("template", "text", "message"),
    [
        (THINKING, "then the hen</think>\nthere", "there"),
        (QWEN, "<think>then</think>\n\nan anther", "an anther"),
        (QWEN, f"then <tool_call>{CALL}</tool_call>", "then"),
    ],
)
def test_reasoning_and_calls_have_none(tmp_path: Path, template: str, text: str, message: str) -> None:
    asked = {"input": "x", "include": INCLUDE, "tools": WEATHER if "tool_call" in text else []}
    with serving(saying(tmp_path, text, template)) as served, served.client() as client:
        whole = client.post(ROUTE, json=asked).json()["output"]
        events = events_of(client.post(ROUTE, json=asked | {"stream": True}))
    [part] = [item["content"][0] for item in whole if item["type"] == "message"]
    assert part["text"].strip() == message
    assert joined(part["logprobs"]).removesuffix("</s>").strip() == message
    found = [
        one for each in events if each["type"] == "response.output_text.delta" for one in each["logprobs"]
    ]
    assert found == part["logprobs"]


PIECES = [b"<think>", b"hm", b"</think>", b"\n", b"ye", b"s", b"", b"<call>"]


def collect(*steps: tuple[Sequence[int], Sequence[Event], bool]) -> list[str]:
    def pieces(tokens: Sequence[int]) -> list[bytes]:
        return [PIECES[token] for token in tokens]

    logprobs, found = MessageLogprobs(pieces, pieces), []
    for tokens, events, thought in steps:
        entries = [TokenLogprob(token, -1.0, 1, ()) for token in tokens]
        found += logprobs.of(Delta(0, tuple(tokens), logprobs=tuple(entries)), events, thought=thought)
    return [each["token"] for each in [*found, *logprobs.rest()]]


def test_tokens_that_come_together_are_told_apart() -> None:
    """Under load, many tokens of a reply come in one delta."""
    thought, said, call = ReasoningPiece("hm"), ContentPiece("yes"), CallBegin(0, "f", "a")
    assert collect(([0, 1, 2, 3, 4, 5], [thought, said], True), ([6], [], False)) == ["ye", "s", ""]
    assert collect(([4, 5, 7], [said, call], False), ([1], [], False)) == ["ye", "s", "hm"]
    assert collect(([0, 1, 2, 3, 4, 5, 7], [thought, said, call], True)) == ["ye", "s"]
    assert collect(([4], [], False), ([5], [said], False)) == ["ye", "s"], "the first text was held back"
    assert collect(([7], [], False), ([1], [call], False), ([4, 5], [said], False)) == ["ye", "s"]
