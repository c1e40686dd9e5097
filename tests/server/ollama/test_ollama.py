"""Ollama's routes: bodies, replies whole and as lines of JSON, tools, formats and errors."""

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.conftest import KEY, MODEL, Served, dry, saying, serving, user, vanish
from tests.server.tools.test_tools import CALL, QWEN, THINKING, WEATHER

Expected = Callable[..., str]
DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")
SCHEMA = {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}
HEADERS = {"Authorization": f"Bearer {KEY}"}


def whole(client: httpx.Client, path: str, **fields: Any) -> dict[str, Any]:
    answer = client.post(path, json={"model": MODEL, "stream": False, **fields})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def lines(client: httpx.Client, path: str, **fields: Any) -> list[dict[str, Any]]:
    answer = client.post(path, json={"model": MODEL, **fields})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.text.endswith("\n")
    return [json.loads(line) for line in answer.text.splitlines()]


def refused(client: httpx.Client, path: str, **fields: Any) -> tuple[int, str]:
    answer = client.post(path, json={"model": MODEL, **fields})
    assert answer.json().keys() == {"error"}
    return answer.status_code, answer.json()["error"]


@pytest.fixture
def thinker(tmp_path: Path) -> Iterator[httpx.Client]:
    with serving(saying(tmp_path, "hm, so\n</think>\n\nYes.", THINKING)) as served, served.client() as client:
        yield client


class TestChat:
    def test_whole(self, client: httpx.Client, expected: Expected) -> None:
        reply = whole(client, "/api/chat", messages=user("hello"))
        assert reply["message"] == {"role": "assistant", "content": expected("hello")}
        assert (reply["model"], reply["done"], reply["done_reason"]) == (MODEL, True, "stop")
        assert datetime.fromisoformat(reply["created_at"]).tzinfo is not None
        usage = client.post("/v1/chat/completions", json={"messages": user("hello")}).json()["usage"]
        assert reply["prompt_eval_count"] == usage["prompt_tokens"]
        assert reply["eval_count"] == usage["completion_tokens"]

    def test_a_stream_is_the_default(self, client: httpx.Client, expected: Expected) -> None:
        *parts, last = lines(client, "/api/chat", messages=user("hello"))
        assert "".join(part["message"]["content"] for part in parts) == expected("hello")
        assert all(part["message"]["role"] == "assistant" and part["done"] is False for part in parts)
        assert all("done_reason" not in part for part in parts)
        assert last["message"] == {"role": "assistant", "content": ""}
        assert (last["done"], last["done_reason"]) == (True, "stop")
        assert last["eval_count"] > 12

    def test_durations_are_nanoseconds(self, slow: Served) -> None:
        with slow.client() as client:
            options = {"num_predict": 11}  # 50 tokens a second: ten intervals of 20 ms
            *_, last = lines(client, "/api/chat", messages=user("hello"), options=options)
        assert last["eval_count"] == 11
        assert last["eval_duration"] > 0.15e9
        assert abs(last["total_duration"] - last["eval_duration"] - last["prompt_eval_duration"]) < 9
        assert last["prompt_eval_duration"] > 0
        assert all(type(last[name]) is int for name in DURATIONS)

    def test_options_set_the_sampling_parameters(
        self, served: Served, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        submit, seen = served.host.submit, []

        def recording(prompt: Any, params: Any, **more: Any) -> Any:
            seen.append(params)
            return submit(prompt, params, **more)

        monkeypatch.setattr(served.host, "submit", recording)
        options = {
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 40,
            "min_p": 0.05,
            "seed": 7,
            "num_predict": 4,
            "stop": ["§"],
            "repeat_penalty": 1.1,
            "presence_penalty": 0.5,
            "frequency_penalty": 0.25,
            "num_ctx": 4096,
            "num_gpu": 99,
            "mirostat": 0,
            "repeat_last_n": 64,
            "typical_p": 0.7,
        }
        reply = whole(client, "/api/chat", messages=user("hi"), options=options)
        assert (reply["eval_count"], reply["done_reason"]) == (4, "length")
        whole(client, "/api/chat", messages=user("hi"), options={"num_predict": -1, "seed": -1, "top_k": -1})
        [params, usual] = seen
        assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, 40, 0.05)
        assert (params.seed, params.max_tokens, params.stop) == (7, 4, ("§",))
        assert (params.repetition_penalty, params.presence_penalty) == (1.1, 0.5)
        assert params.frequency_penalty == 0.25
        assert (usual.seed, usual.max_tokens, usual.top_k) == (None, None, 0)

    def test_fields_without_effect_are_accepted(self, client: httpx.Client, expected: Expected) -> None:
        reply = whole(
            client,
            "/api/chat",
            messages=[user("hello")[0] | {"images": None, "thinking": ""}],
            keep_alive="5m",
            think=False,
            format="",
            options=None,
            tools=[],
            truncate=True,
        )
        assert reply["message"]["content"] == expected("hello")

    def test_no_messages_load_the_model(self, client: httpx.Client) -> None:
        for fields in ({}, {"messages": []}, {"messages": None, "keep_alive": 0}):
            reply = client.post("/api/chat", json={"model": MODEL, **fields}).json()
            assert (reply["done"], reply["done_reason"]) == (True, "load")
            assert reply["message"] == {"role": "assistant", "content": ""}

    def test_reasoning_has_its_own_field(self, thinker: httpx.Client) -> None:
        reply = whole(thinker, "/api/chat", messages=user("?"))
        assert reply["message"] == {"role": "assistant", "content": "Yes.", "thinking": "hm, so"}
        parts = [part["message"] for part in lines(thinker, "/api/chat", messages=user("?"), think=True)]
        assert "".join(part.get("thinking", "") for part in parts) == "hm, so"
        assert "".join(part["content"] for part in parts) == "Yes."
        assert "thinking" in thinker.post("/api/show", json={"model": MODEL}).json()["capabilities"]

    def test_think_reaches_the_template(self, tmp_path: Path) -> None:
        template = (
            "{% for m in messages %}{{ m.content }}{% endfor %}"
            "{% if enable_thinking is defined and not enable_thinking %}[do not think]{% endif %}"
            "{{ reasoning_effort | default('') }}"
        )
        with serving(saying(tmp_path, "ok", template)) as served, served.client() as client:
            counts = {
                think: whole(client, "/api/chat", messages=user("x"), think=think)["prompt_eval_count"]
                for think in (None, True, False, "high")
            }
        assert counts[True] == counts[None]
        assert counts[False] > counts[None] + 4
        assert counts["high"] > counts[None]


class TestGenerate:
    def test_whole_and_as_lines(self, client: httpx.Client, expected: Expected) -> None:
        reply = whole(client, "/api/generate", prompt="hello")
        assert reply["response"] == expected("hello")
        assert (reply["done"], reply["done_reason"]) == (True, "stop")
        *parts, last = lines(client, "/api/generate", prompt="hello")
        assert "".join(part["response"] for part in parts) == expected("hello")
        assert last["response"] == ""
        assert last["eval_count"] == reply["eval_count"]

    def test_a_system_prompt_is_a_message(self, client: httpx.Client) -> None:
        messages = [{"role": "system", "content": "be brief"}, *user("hi")]
        chat = whole(client, "/api/chat", messages=messages)
        reply = whole(client, "/api/generate", prompt="hi", system="be brief")
        assert reply["response"] == chat["message"]["content"]
        assert reply["prompt_eval_count"] == chat["prompt_eval_count"]

    def test_raw_continues_the_text(self, client: httpx.Client) -> None:
        reply = whole(client, "/api/generate", prompt="a text", raw=True, options={"num_predict": 9})
        body = {"prompt": "a text", "max_tokens": 9}
        completion = client.post("/v1/completions", json=body).json()
        assert reply["response"] == completion["choices"][0]["text"]
        assert reply["prompt_eval_count"] == completion["usage"]["prompt_tokens"]

    def test_no_prompt_loads_the_model(self, client: httpx.Client) -> None:
        reply = client.post("/api/generate", json={"model": MODEL}).json()
        assert (reply["response"], reply["done"], reply["done_reason"]) == ("", True, "load")

    def test_a_model_without_a_template_continues_the_text(self, tmp_path: Path) -> None:
        with serving(saying(tmp_path, "more", None)) as served, served.client() as client:
            assert whole(client, "/api/generate", prompt="x")["response"] == "more"
            assert refused(client, "/api/generate", prompt="x", system="y")[0] == 400
            assert "no chat template" in refused(client, "/api/chat", messages=user("x"))[1]


class TestTools:
    @pytest.mark.parametrize("stream", [False, True])
    def test_calls_have_arguments_as_an_object(self, tmp_path: Path, stream: bool) -> None:
        text = f"Well.\n<tool_call>\n{CALL}\n</tool_call>\n<tool_call>{CALL}</tool_call>"
        fields: dict[str, Any] = {"messages": user("weather?"), "tools": WEATHER}
        with serving(saying(tmp_path, text, QWEN)) as served, served.client() as client:
            parts = (lines if stream else lambda *a, **f: [whole(*a, **f)])(client, "/api/chat", **fields)
            capabilities = client.post("/api/show", json={"model": MODEL}).json()["capabilities"]
        calls = [call for part in parts for call in part["message"].get("tool_calls", ())]
        assert [call["function"] for call in calls] == [
            {"name": "weather", "arguments": {"town": "Köln"}},
            {"name": "weather", "arguments": {"town": "Köln"}},
        ]
        assert "".join(part["message"]["content"] for part in parts) == "Well."
        assert parts[-1]["done_reason"] == "stop"
        assert capabilities == ["completion", "tools"]

    def test_calls_and_results_reach_the_template(self, tmp_path: Path) -> None:
        template = QWEN.replace("{{ m.role }}:", "{{ m.role }} {{ m.name }}:")
        call = {"function": {"name": "weather", "arguments": {"town": "K"}}}
        ours = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"town": "K"}'}}
        with serving(saying(tmp_path, "warm", template)) as served, served.client() as client:

            def tokens(path: str, call: Any, result: Any) -> int:
                messages = [*user("?"), {"role": "assistant", "content": "", "tool_calls": [call]}]
                messages.append({"role": "tool", "content": "15 degrees", **result})
                reply = whole(client, path, messages=messages, tools=WEATHER)
                count: int = reply.get("prompt_eval_count") or reply["usage"]["prompt_tokens"]
                return count

            expected = tokens("/v1/chat/completions", ours, {"name": "weather"})
            assert tokens("/api/chat", call, {"tool_name": "weather"}) == expected

    def test_invalid_tools_are_refused(self, tmp_path: Path, client: httpx.Client) -> None:
        assert "takes no tools" in refused(client, "/api/chat", messages=user("?"), tools=WEATHER)[1]
        with serving(saying(tmp_path, "fine", QWEN)) as served, served.client() as other:
            status, error = refused(other, "/api/chat", messages=user("?"), tools=[{"type": "function"}])
            assert status == 400
            assert error.startswith("tools[0] must have the form")


class TestFormat:
    @pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
    @pytest.mark.parametrize("stream", [False, True])
    def test_the_reply_matches(self, client: httpx.Client, path: str, stream: bool) -> None:
        for form in ("json", SCHEMA):
            fields: dict[str, Any] = {"messages": user("?"), "prompt": "?", "format": form}
            parts = lines(client, path, **fields) if stream else [whole(client, path, **fields)]
            text = "".join(
                part["message"]["content"] if "message" in part else part["response"] for part in parts
            )
            value = json.loads(text)
            assert isinstance(value, dict)
            assert form == "json" or isinstance(value["town"], str)

    def test_errors_name_the_field(self, client: httpx.Client) -> None:
        for form in ({"type": "nothing"}, {"type": "string", "pattern": "("}):
            for stream in (False, True):
                answer = client.post(
                    "/api/chat",
                    json={"model": MODEL, "messages": user("?"), "format": form, "stream": stream},
                )
                assert answer.status_code == 400
                assert answer.json()["error"].startswith("format: ")
        status, error = refused(client, "/api/chat", messages=user("?"), format="yaml")
        assert (status, error.partition(":")[0]) == (400, "format")


class TestErrors:
    @pytest.mark.parametrize(
        ("fields", "sentence"),
        [
            ({"suffix": "end"}, "suffix is not supported"),
            ({"images": ["aGk="]}, "images is not supported: this engine reads only text"),
            ({"template": "{{ .Prompt }}"}, "send raw and a prompt to /api/generate"),
            ({"context": [1, 2]}, "context is not supported"),
            ({"raw": True, "system": "s"}, "system: raw continues the prompt alone"),
            ({"top_logprobs": 21}, "top_logprobs"),
            ({"options": {"temperature": -1}}, "options.temperature: "),
            ({"options": {"num_predict": "many"}}, "options.num_predict: "),
            ({"options": {"num_predict": 100_000}}, "lower num_predict to "),
            ({"options": {"stop": ["a"] * 17}}, "options.stop: "),
            ({"stream": "no"}, "stream: "),
            ({"prompt": 5}, "prompt: "),
        ],
    )
    def test_a_field_is_refused(self, client: httpx.Client, fields: dict[str, Any], sentence: str) -> None:
        status, error = refused(client, "/api/generate", **{"prompt": "hi"} | fields)
        assert status == 400
        assert sentence in error

    def test_messages_are_refused(self, client: httpx.Client) -> None:
        for message, sentence in (
            ({"role": "user", "content": "?", "images": ["aGk="]}, "messages[0].images is not supported"),
            ({"role": "robot", "content": "?"}, "messages[0].role must be one of"),
            ({"role": "user", "content": 5}, "messages[0].content must be"),
        ):
            status, error = refused(client, "/api/chat", messages=[message])
            assert status == 400
            assert sentence in error

    def test_another_model_is_not_found(self, client: httpx.Client) -> None:
        for path in ("/api/chat", "/api/generate", "/api/show"):
            status, error = refused(client, path, model="llama3.2")
            assert status == 404
            assert error == f"model 'llama3.2' does not exist; this server serves {MODEL!r}"
        assert client.post("/api/chat", json={}).json() == {"error": "model is missing"}
        assert client.post("/api/show", json={}).json() == {"error": "model is missing"}

    def test_a_reply_that_fails_ends_its_stream_with_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with serving(dry(rate=50)) as served, served.client() as client:
            fields = {"model": MODEL, "prompt": "x", "options": {"num_predict": 3000}, "raw": True}
            with client.stream("POST", "/api/generate", json=fields) as stream:
                received = stream.iter_lines()
                assert json.loads(next(received))["done"] is False

                def dies(*args: Any) -> Any:
                    raise RuntimeError("boom")

                monkeypatch.setattr(served.engine.scheduler, "schedule", dies)
                *_, last = received
            assert json.loads(last).keys() == {"error"}


def test_a_disconnect_aborts_the_reply(slow: Served) -> None:
    fields = {"model": MODEL, "options": {"num_predict": 3000}}
    vanish(slow, "/api/generate", fields | {"prompt": "vanish", "raw": True})
    vanish(slow, "/api/chat", fields | {"messages": user("vanish"), "stream": False})


class TestContentType:
    @pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
    def test_any_is_accepted_with_a_key_alone(self, served: Served, kind: str | None) -> None:
        """A page of another site can send these types without asking, but it does not know the key."""
        body = json.dumps({"model": MODEL, "prompt": "hi", "stream": False, "options": {"num_predict": 2}})
        headers = {"content-type": kind} if kind else {}
        with served.client() as client:
            for path in ("/api/generate", "/api/show"):
                assert client.post(path, content=body, headers=headers).status_code == 200
            assert client.post("/v1/completions", content=body, headers=headers).status_code == 415
        with serving(dry(), keys=()) as keyless, keyless.client(headers={}) as client:
            for path in ("/api/generate", "/api/chat", "/api/show"):
                answer = client.post(path, content=body, headers=headers)
                assert answer.status_code == 415
                assert "content-type must be application/json" in answer.json()["error"]
            assert client.post("/api/generate", json=json.loads(body)).status_code == 200


class TestModels:
    @pytest.fixture(scope="class")
    def client(self) -> Iterator[httpx.Client]:
        with serving(dry(), name="pocket", aliases=("org/big:8b",)) as served, served.client() as client:
            yield client

    def test_the_root_answers(self, client: httpx.Client) -> None:
        assert client.head("/").status_code == 200
        assert client.get("/").text == "minichat is running"

    def test_all_names_are_listed(self, client: httpx.Client) -> None:
        for path in ("/api/tags", "/api/ps"):
            models = client.get(path).json()["models"]
            assert [model["name"] for model in models] == ["pocket", "org/big:8b"]
            assert [model["model"] for model in models] == ["pocket", "org/big:8b"]
            assert len({model["digest"] for model in models}) == 1
            assert all(datetime.fromisoformat(model["modified_at"]) for model in models)
        assert all(model["context_length"] > 0 for model in models)

    def test_a_tag_may_be_left_out_if_it_is_latest(self, client: httpx.Client) -> None:
        for name, status in (
            ("pocket", 200),
            ("pocket:latest", 200),
            ("org/big:8b", 200),
            ("pocket:8b", 404),
            ("org/big", 404),
            ("org/big:latest", 404),
        ):
            fields = {"model": name, "prompt": "hi", "stream": False, "options": {"num_predict": 1}}
            answer = client.post("/api/generate", json=fields)
            assert answer.status_code == status
            assert status != 200 or answer.json()["model"] == name
            assert client.post("/api/show", json={"name": name}).status_code == status
        assert (
            client.post("/v1/completions", json={"model": "pocket:latest", "prompt": "x"}).status_code == 404
        )

    def test_show(self, client: httpx.Client) -> None:
        shown = client.post("/api/show", json={"model": "pocket"}).json()
        longest = client.get("/v1/models").json()["data"][0]["max_model_len"]
        info = shown["model_info"]
        assert info[f"{info['general.architecture']}.context_length"] == longest
        assert "messages" in shown["template"]
        assert shown["capabilities"][0] == "completion"

    def test_version(self, client: httpx.Client) -> None:
        assert client.get("/api/version").json() == {"version": "0.9.0"}


def test_errors_outside_a_route_have_its_form_too(served: Served) -> None:
    for path, headers, status in (("/api/tags", {}, 401), ("/api/nothing", HEADERS, 404)):
        answer = httpx.get(f"{served.url}{path}", headers=headers)
        assert answer.status_code == status
        assert type(answer.json()["error"]) is str
