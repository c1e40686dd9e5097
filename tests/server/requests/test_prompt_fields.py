"""The fields that shape a chat's prompt: who speaks next, and variables of the template."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.server.conftest import Served, saying, serving, user

CHAT = "/v1/chat/completions"
TEMPLATE = (
    "{% if reasoning_effort is defined %}effort {{ reasoning_effort }}\n{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: <think>\n{% endif %}"
)
OPEN = [*user("hi"), {"role": "assistant", "content": "Once upon a "}]


@dataclass
class Model:
    """A model that always says the same, and the prompts that it has read."""

    served: Served
    prompts: list[str]

    def ask(self, messages: list[Any], **more: Any) -> dict[str, Any]:
        with self.served.client() as client:
            response = client.post(CHAT, json={"messages": messages, **more})
        assert response.is_success, response.text
        message: dict[str, Any] = response.json()["choices"][0]["message"]
        return message


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    prompts: list[str] = []
    folder = tmp_path_factory.mktemp("model")
    with serving(saying(folder, "so</think>time", TEMPLATE, prompts)) as served:
        yield Model(served, prompts)


def test_a_final_assistant_message_is_continued(model: Model) -> None:
    message = model.ask(OPEN, continue_final_message=True, add_generation_prompt=False)
    assert model.prompts[-1] == "user: hi\nassistant: Once upon a "
    assert message["content"] == "so</think>time", "the reply begins after the reasoning"
    assert "reasoning_content" not in message


def test_the_reasoning_of_a_final_message_is_continued(model: Model) -> None:
    thinking = [*user("hi"), {"role": "assistant", "content": [{"type": "text", "text": "<think>\nIs it"}]}]
    message = model.ask(thinking, continue_final_message=True)
    assert model.prompts[-1] == "user: hi\nassistant: <think>\nIs it"
    assert (message["reasoning_content"], message["content"]) == ("so", "time")


def test_a_prompt_without_a_turn_for_the_reply(model: Model) -> None:
    for wanted, end in ((None, "assistant: <think>\n"), (True, "assistant: <think>\n"), (False, "")):
        message = model.ask(user("hi"), add_generation_prompt=wanted)
        assert model.prompts[-1] == f"user: hi\n{end}"
        assert message["content"] == ("time" if end else "so</think>time")


def test_the_effort_is_a_variable_of_the_template(model: Model) -> None:
    for effort in ("none", "minimal", "low", "medium", "high", "xhigh", "max"):
        model.ask(user("hi"), reasoning_effort=effort)
        assert model.prompts[-1].startswith(f"effort {effort}\nuser: hi\n")
    model.ask(user("hi"), reasoning_effort="low", chat_template_kwargs={"reasoning_effort": "own"})
    assert model.prompts[-1].startswith("effort own\n")
    model.ask(user("hi"))
    assert model.prompts[-1].startswith("user: hi\n")


def test_a_template_that_does_not_know_the_effort_ignores_it(client: httpx.Client) -> None:
    plain, asked = (
        client.post(CHAT, json={"messages": user("hi"), **more}).json()["choices"][0]["message"]
        for more in ({}, {"reasoning_effort": "high"})
    )
    assert plain == asked


@pytest.mark.parametrize(
    "final",
    [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
    ],
)
def test_only_text_of_the_assistant_is_continued(client: httpx.Client, final: dict[str, Any]) -> None:
    response = client.post(CHAT, json={"messages": [*user("hi"), final], "continue_final_message": True})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "continue_final_message"


@pytest.mark.parametrize(
    "call", [{}, {"function": None}, {"function": {"arguments": "{}"}}, {"function": {"name": "f"}},
             {"function": {"name": ["f"], "arguments": "{}"}}, {"function": {"name": "f", "arguments": 5}}, 5]
)  # fmt: skip
def test_a_call_of_another_form_is_refused_by_its_place(client: httpx.Client, call: Any) -> None:
    """Templates fail at it, each in its own way, or write it into the prompt."""
    messages = [*user("hi"), {"role": "assistant", "content": None, "tool_calls": [call]}, *user("go")]
    error = client.post(CHAT, json={"messages": messages}).json()["error"]
    assert error["param"] == "messages[1].tool_calls[0]"
    assert "must have the form" in error["message"]


def test_the_effort_of_a_response(model: Model) -> None:
    with model.served.client() as client:
        for effort, start in (("high", "effort high\n"), (None, "user: hi\n")):
            body = {"input": "hi", "reasoning": {"effort": effort}}
            assert client.post("/v1/responses", json=body).is_success
            assert model.prompts[-1].startswith(start)
