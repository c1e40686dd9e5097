"""Several replies to a prompt, beam search, drafts, and continuing given tokens, by every route."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect

from engine.api.config import EngineConfig
from engine.api.events import Delta, Event
from engine.api.params import SamplingParams
from engine.api.wire import decode_delta, decode_snapshot
from engine.start import start
from tests.cli.conftest import write_model
from tests.server.conftest import KEY, Served, dry, serving, user
from tests.server.native.test_events import notes
from tests.server.requests.test_fields import CHAT, TEXT, refused
from tests.waiting import becomes

PROMPT = [5, 7, 11, 13]
LENGTH = {"max_tokens": 8, "ignore_eos": True}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = write_model(tmp_path_factory.mktemp("tiny"))
    with serving(start(EngineConfig(model=str(folder), device="cpu", blocks=400, seed=0))) as one:
        yield one


@contextmanager
def recorded_events(served: Served) -> Iterator[list[Event]]:
    """Record the engine's events inside this block."""
    events: list[Event] = []
    unsubscribe = served.host.subscribe(events.append)
    yield events
    unsubscribe()


def from_engine(served: Served, **params: Any) -> list[tuple[str, float | None]]:
    """Return the engine's own replies to the prompt, with their scores."""
    results = served.host.submit(PROMPT, SamplingParams(**LENGTH, **params)).results()
    return [(each.text, each.score) for each in results]


def over_http(served: Served, **fields: Any) -> list[tuple[str, float | None]]:
    with served.client() as client:
        answer = client.post(TEXT, json={"prompt": PROMPT, **LENGTH, **fields})
        assert answer.status_code == 200, answer.text
        choices = answer.json()["choices"]
    assert [each["index"] for each in choices] == list(range(len(choices)))
    return [(each["text"], each.get("score")) for each in choices]


def streamed(client: httpx.Client, path: str, **fields: Any) -> list[dict[str, Any]]:
    with client.stream("POST", path, json={"stream": True, **fields}) as response:
        assert response.status_code == 200, response.read()
        *data, done = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert done == "[DONE]"
    return [json.loads(each) for each in data]


class TestOverHttp:
    def test_several_replies_are_one_request_with_one_prefill(self, real: Served) -> None:
        with recorded_events(real) as events:
            texts = over_http(real, n=4, seed=3, temperature=1.5)
        assert texts == from_engine(real, n=4, seed=3, temperature=1.5)
        assert len({text for text, _ in texts}) == 4
        assert [event.kind for event in events].count("queued") == 1
        assert real.becomes_idle()

    def test_the_best_of_several(self, real: Served) -> None:
        params: dict[str, Any] = {"n": 2, "best_of": 5, "seed": 3, "temperature": 1.5}
        texts = over_http(real, **params)
        assert texts == from_engine(real, **params)
        [first, second] = [score for _, score in texts]
        assert first is not None and second is not None and first >= second

    @pytest.mark.parametrize(
        ("fields", "params"),
        [
            ({"num_beams": 4}, {"beams": 4}),
            ({"num_beams": 4, "n": 3}, {"beams": 4, "n": 3}),
            ({"use_beam_search": True, "n": 3}, {"beams": 3, "n": 3}),
            ({"use_beam_search": True, "num_beams": 4, "n": 2}, {"beams": 4, "n": 2}),
            (
                {"num_beams": 3, "length_penalty": 0.0, "early_stopping": "never", "n": 3},
                {"beams": 3, "length_penalty": 0.0, "early_stopping": "never", "n": 3},
            ),
        ],
    )
    def test_beam_search(self, real: Served, fields: dict[str, Any], params: dict[str, Any]) -> None:
        texts = over_http(real, **fields)
        assert texts == from_engine(real, **params)
        assert all(score is not None for _, score in texts)

    def test_a_stream_of_a_beam_search_sends_settled_tokens(self, real: Served) -> None:
        fields: dict[str, Any] = {"prompt": PROMPT, **LENGTH, "num_beams": 4, "n": 2}
        with real.client() as client:
            chunks = streamed(client, TEXT, **fields, stream_options={"include_usage": True})
        *parts, usage = chunks
        texts, scores = ["", ""], dict[int, float]()
        for [choice] in (chunk["choices"] for chunk in parts):
            texts[choice["index"]] += choice["text"]
            if choice["finish_reason"]:
                scores[choice["index"]] = choice["score"]
        assert [(text, scores[n]) for n, text in enumerate(texts)] == over_http(real, num_beams=4, n=2)
        assert usage["usage"]["completion_tokens"] == 16

    def test_drafts_do_not_change_a_reply(self, real: Served) -> None:
        plain = over_http(real, temperature=0)
        for kind in ("ngram", "suffix"):
            assert over_http(real, temperature=0, speculate=kind, draft_tokens=3) == plain

    def test_choices_of_several_prompts_are_numbered_consecutively(
        self, served: Served, client: httpx.Client
    ) -> None:
        fields: dict[str, Any] = {"prompt": ["one", "two"], "n": 3, "seed": 1, **LENGTH}
        whole = client.post(TEXT, json=fields).json()
        alone = [client.post(TEXT, json=fields | {"prompt": each}).json() for each in fields["prompt"]]
        texts = [choice["text"] for choice in whole["choices"]]
        assert texts == [choice["text"] for each in alone for choice in each["choices"]]
        pieces = [""] * 6
        for chunk in streamed(client, TEXT, **fields):
            for choice in chunk["choices"]:
                pieces[choice["index"]] += choice["text"]
        assert pieces == texts
        assert whole["usage"]["completion_tokens"] == 48
        assert whole["usage"]["prompt_tokens"] == sum(each["usage"]["prompt_tokens"] for each in alone)

    def test_a_client_that_disconnects_ends_all_its_rows(self, slow: Served) -> None:
        for fields in ({"n": 5}, {"num_beams": 5}):
            with slow.client() as client:
                body = {"prompt": "x", "max_tokens": 2000, "ignore_eos": True, "stream": True, **fields}
                with client.stream("POST", TEXT, json=body) as response:
                    assert response.status_code == 200
                    assert becomes(lambda: slow.host.snapshot().running == 5)
                    assert slow.state.gate.in_flight == 5
            assert slow.becomes_idle()

    @pytest.mark.parametrize(
        ("fields", "param", "words"),
        [
            ({"best_of": 2, "n": 3}, "best_of", "less than n"),
            ({"best_of": 65}, "best_of", "64"),
            ({"num_beams": 2, "n": 3}, "n", "more than num_beams (2)"),
            ({"num_beams": 4, "best_of": 4}, "best_of", "cannot be combined with num_beams (4)"),
            ({"num_beams": 300}, "num_beams", "rows"),
            ({"num_beams": 513}, "num_beams", "512"),
            ({"num_beams": 4, "speculate": "ngram"}, "speculate", "cannot be combined with num_beams (4)"),
            ({"num_beams": 4, "guided_regex": "a+"}, "guided_regex", "cannot be combined with num_beams (4)"),
            (
                {"speculate": "ngram", "guided_regex": "a+"},
                "guided_regex",
                "cannot be combined with speculate",
            ),
            ({"use_beam_search": True}, "use_beam_search", "width above 1; set num_beams"),
            ({"use_beam_search": False, "num_beams": 4}, "use_beam_search", "cannot be false"),
            ({"early_stopping": "sometimes"}, "early_stopping", ""),
            ({"length_penalty": 11}, "length_penalty", ""),
            ({"speculate": "hope"}, "speculate", "must be one of ngram"),
            ({"speculate": "draft"}, "speculate", "is not available"),
            ({"draft_tokens": 17}, "draft_tokens", ""),
            ({"said": [-1]}, "said[0]", ""),
            ({"beams": 4}, "beams", "not a known"),
        ],
    )
    @pytest.mark.parametrize("path", [CHAT, TEXT])
    def test_conflicting_fields_are_refused_by_name(
        self, client: httpx.Client, path: str, fields: dict[str, Any], param: str, words: str
    ) -> None:
        start = {"messages": user("hi")} if path == CHAT else {"prompt": "hi"}
        error = refused(client.post(path, json={**start, **fields}))
        assert error["param"] == param
        assert words in error["message"]

    def test_metrics_of_several(self) -> None:
        with serving(dry()) as served, served.client() as client:
            client.post(TEXT, json={"prompt": "x", "n": 3, **LENGTH})
            client.post(TEXT, json={"prompt": "x", "num_beams": 3, **LENGTH})
            lines = [line for line in client.get("/metrics").text.splitlines() if line[0] != "#"]
        values = dict(line.removeprefix("minichat:").rsplit(" ", 1) for line in lines)
        label = '{model_name="test-model"}'
        assert values[f"time_to_first_token_seconds_count{label}"] == "4"
        assert values[f"e2e_request_latency_seconds_count{label}"] == "4"
        assert float(values[f"e2e_request_latency_seconds_sum{label}"]) > 0
        assert values[f"generation_tokens_total{label}"] == "32"
        assert values[f"inter_token_latency_seconds_count{label}"] == "21", "of the sampled tokens alone"
        hits, queries = (int(values[f"prefix_cache_{name}_total{label}"]) for name in ("hits", "queries"))
        assert hits <= queries


class TestContinuing:
    """`said`: the tokens a reply begins with, such as those of another reply up to an edited token."""

    def test_a_reply_continues_after_the_given_tokens(self, served: Served, client: httpx.Client) -> None:
        for path, body in ((TEXT, {"prompt": "hi"}), (CHAT, {"messages": user("hi")})):
            asked: dict[str, Any] = {**body, "max_tokens": 30, "logprobs": 1 if path == TEXT else True}
            [whole] = client.post(path, json=asked).json()["choices"]
            text = whole["text"] if path == TEXT else whole["message"]["content"]
            ids = served.engine.tokenizer.encode(text)[:10]
            [rest] = client.post(path, json={**asked, "said": ids}).json()["choices"]
            more = rest["text"] if path == TEXT else rest["message"]["content"]
            assert served.engine.tokenizer.decode(ids) + more == text
            chunks = streamed(client, path, **asked, said=ids)
            pieces = [choice for chunk in chunks for choice in chunk["choices"]]
            parts = [each["text"] if path == TEXT else each["delta"].get("content", "") for each in pieces]
            assert "".join(parts) == more

    def test_a_reply_from_given_tokens_uses_the_prefix_cache(
        self, served: Served, client: httpx.Client
    ) -> None:
        prompt = [5] * 64
        tokens = [9] * 40
        client.post(TEXT, json={"prompt": [*prompt, *tokens], "max_tokens": 1})
        with recorded_events(served) as events:
            client.post(TEXT, json={"prompt": prompt, "said": tokens, "max_tokens": 41, "ignore_eos": True})
        [admitted] = [event for event in events if event.kind == "admitted"]
        assert getattr(admitted, "cached", 0) >= 96

    def test_given_tokens_must_match_the_grammar(self, served: Served, client: httpx.Client) -> None:
        def continuing(written: str) -> httpx.Response:
            ids = served.engine.tokenizer.encode(written)
            return client.post(TEXT, json={"prompt": "x", "guided_regex": "a{1,2}", "said": ids})

        for written, texts in (("a", ("", "a")), ("aa", ("",))):
            [choice] = continuing(written).json()["choices"]
            assert choice["text"] in texts and choice["finish_reason"] == "stop"
        error = refused(continuing("b"))
        assert error["param"] == "said" and "does not match" in error["message"]

    def test_given_tokens_must_leave_room_for_more(self, client: httpx.Client) -> None:
        error = refused(client.post(TEXT, json={"prompt": "x", "said": [5] * 9, "max_tokens": 9}))
        assert (error["code"], error["param"]) == ("context_length_exceeded", "said")
        assert error["message"].endswith("the start of the reply has 9 tokens; the reply may have 9")


class TestReplies:
    def read(self, client: httpx.Client, id: str) -> list[Delta]:
        with client.stream("GET", f"/engine/replies/{id}") as response:
            return [
                decode_delta(each)
                for kind, _, data in notes(response)
                if kind == "deltas"
                for each in data["deltas"]
            ]

    def begin(self, client: httpx.Client, path: str = "/engine/replies", **body: Any) -> dict[str, Any]:
        answer = client.post(path, json=body)
        assert answer.status_code == 201, answer.text
        record: dict[str, Any] = answer.json()
        return record

    def test_several_replies_and_beam_searches_are_sent_whole(self, client: httpx.Client) -> None:
        for params in ({"n": 3}, {"beams": 4, "n": 3}, {"best_of": 4, "n": 3}):
            record = self.begin(client, prompt="x", params={**LENGTH, **params}, keep=True)
            deltas = self.read(client, record["id"])
            assert [each.last for each in deltas].count(True) == 1 and deltas[-1].last
            lengths = [sum(len(each.tokens) for each in deltas if each.choice == n) for n in range(3)]
            assert lengths == [8, 8, 8]
            assert not any(each.tail for each in self.read(client, record["id"]))  # of a reply that has ended

    def test_given_tokens_are_listed_with_the_tag(self, served: Served, client: httpx.Client) -> None:
        ids = served.engine.tokenizer.encode("green garden")
        self.begin(client, prompt="x", params=LENGTH | {"max_tokens": 20}, said=ids, tag="picked")
        [found] = client.get("/engine/replies?tag=picked").json()["replies"]
        assert found["before"] == {
            "prompt_tokens": found["prompt_tokens"],
            "tokens": ids,
            "text": "green garden",
        }

    def test_the_tokens_before_a_fork_are_listed_with_the_tag(self, slow: Served) -> None:
        params = {"max_tokens": 500, "ignore_eos": True}
        with slow.client() as client:
            parent = self.begin(client, prompt=user("tell me"), params=params, keep=True)
            assert becomes(lambda: client.get("/engine/replies").json()["replies"][-1]["deltas"] > 3)
            child = self.begin(
                client, f"/engine/replies/{parent['id']}/fork", params={}, keep=True, tag="child"
            )
            again = self.begin(
                client, f"/engine/replies/{child['id']}/fork", params={}, keep=True, tag="grandchild"
            )
            with slow.at_full_speed():
                texts = [self.read(client, each["id"]) for each in (parent, child, again)]
            first = [token for each in texts[0] for token in each.tokens]
            for tag, record, deltas in (("child", child, texts[1]), ("grandchild", again, texts[2])):
                [found] = client.get(f"/engine/replies?tag={tag}").json()["replies"]
                before = found["before"]
                from_engine = [token for each in deltas for token in each.tokens]
                assert before["prompt_tokens"] == parent["prompt_tokens"]
                assert len(before["tokens"]) == record["prompt_tokens"] - parent["prompt_tokens"] > 3
                assert before["tokens"] + from_engine == first  # the fake model continues the same way
                whole = "".join(each.text for each in texts[0])
                assert before["text"] + "".join(each.text for each in deltas) == whole
                client.delete(f"/engine/replies/{found['id']}")
            client.delete(f"/engine/replies/{parent['id']}")


class TestWhileItRuns:
    """Changes of the decoding method from the next token on, by the update call and the WebSocket."""

    def open(self, served: Served) -> ClientConnection:
        url = f"ws://127.0.0.1:{served.port}/ws"
        return connect(url, additional_headers={"Authorization": f"Bearer {KEY}"})

    def messages(self, socket: ClientConnection) -> Iterator[tuple[str, Any]]:
        while True:
            message = json.loads(socket.recv(10))
            yield message["type"], message

    def test_beam_search_is_switched_on_and_off_by_the_update_call(self, slow: Served) -> None:
        with slow.client() as client:
            body = {"prompt": "tell", "params": {"max_tokens": 500, "ignore_eos": True}, "keep": True}
            record = client.post("/engine/replies", json=body).json()
            path = f"/engine/requests/{record['request']}/update"
            assert becomes(lambda: client.get("/engine/replies").json()["replies"][-1]["deltas"] > 2)
            assert client.post(path, json={"changes": {"beams": 4, "length_penalty": 0.5}}).status_code == 204

            def searching() -> int:
                shot = decode_snapshot(client.get("/engine/snapshot").json())
                return len(shot.beams[0].live) if shot.beams else 0

            assert becomes(lambda: searching() == 4)
            grammar = {"grammar": {"kind": "regex", "text": "a+"}}
            for changes, param in (
                (grammar, "grammar"),
                ({"n": 2}, "n"),
                ({"speculate": "ngram"}, "speculate"),
            ):
                error = refused(client.post(path, json={"changes": changes}))
                assert error["param"] == param
            assert client.post(path, json={"changes": {"beams": 1, "top_p": 0.9}}).status_code == 204
            assert client.post(path, json={"changes": {"speculate": "ngram"}}).status_code == 204
            assert becomes(lambda: searching() == 0)
            path = f"/engine/replies/{record['id']}"
            with slow.at_full_speed(), client.stream("GET", path) as response:
                over_http = [data for kind, _, data in notes(response) if kind == "deltas"]
            deltas = [decode_delta(each) for data in over_http for each in data["deltas"]]
            assert sum(len(each.tokens) for each in deltas) == 500
            client.delete(f"/engine/replies/{record['id']}")
        assert slow.becomes_idle()

    def test_the_same_over_a_websocket(self, slow: Served) -> None:
        with self.open(slow) as socket, ExitStack() as at_the_end:
            params = {"max_tokens": 500, "ignore_eos": True}
            socket.send(json.dumps({"type": "generate", "id": "a", "prompt": "tell", "params": params}))
            deltas: list[Delta] = []
            asked = 0
            for kind, message in self.messages(socket):
                if kind == "deltas":
                    deltas += [decode_delta(each) for each in message["deltas"]]
                elif kind == "done":
                    break
                assert kind != "error", message
                if asked == 0 and len(deltas) > 3:
                    asked = 1
                    socket.send(json.dumps({"type": "update", "id": "a", "changes": {"beams": 3}}))
                if asked == 1 and any(each.tail for each in deltas):
                    asked = 2
                    socket.send(json.dumps({"type": "update", "id": "a", "changes": {"beams": 1}}))
                if asked == 2 and kind == "updated":
                    at_the_end.enter_context(slow.at_full_speed())
            assert asked == 2
            assert sum(len(each.tokens) for each in deltas) == message["usage"]["completion_tokens"] == 500
        assert slow.becomes_idle()

    def test_several_and_searches_over_a_websocket(self, served: Served) -> None:
        with self.open(served) as socket:
            for params in ({"n": 3}, {"beams": 4, "n": 3}, {"best_of": 4, "n": 3}, {"speculate": "ngram"}):
                body = {"type": "generate", "id": "a", "prompt": "x", "params": {**LENGTH, **params}}
                socket.send(json.dumps(body))
                deltas = []
                for kind, message in self.messages(socket):
                    if kind == "deltas":
                        deltas += [decode_delta(each) for each in message["deltas"]]
                    elif kind == "done":
                        break
                    assert kind != "error", message
                assert deltas[-1].last
                choices = {each.choice for each in deltas}
                assert len(choices) == params.get("n", 1)
                assert message["usage"]["completion_tokens"] == 8 * len(choices)

    def test_a_reply_that_continues_given_tokens(self, served: Served) -> None:
        ids = served.engine.tokenizer.encode("green garden")
        with self.open(served) as socket:
            params = {"max_tokens": len(ids) + 4, "ignore_eos": True}
            asked = {"type": "generate", "id": "a", "prompt": "x", "said": ids, "params": params}
            socket.send(json.dumps(asked))
            usage = next(message["usage"] for kind, message in self.messages(socket) if kind == "done")
        assert usage["completion_tokens"] == 4
