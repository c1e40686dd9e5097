"""State, snapshots and changes of a running engine, and the reply channel of remote screens."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from uvicorn.protocols.utils import ClientDisconnected
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from engine.api.wire import decode_delta, decode_snapshot
from engine.server.http.protocol import LenientWebSocket
from tests.server.conftest import KEY, MODEL, OWNER, Served, dry, serving, user
from tests.server.native.test_events import notes
from tests.waiting import becomes

HEADERS = {"Authorization": f"Bearer {KEY}"}
LONG = {"max_tokens": 2000, "ignore_eos": True}


def test_state_and_snapshot(client: httpx.Client) -> None:
    state = client.get("/engine").json()
    assert (state["model"], state["state"], state["has_template"], state["tools"]) == (
        MODEL,
        "ready",
        True,
        None,
    )
    shot = decode_snapshot(client.get("/engine/snapshot").json())
    assert shot.blocks.size == 4096


@pytest.mark.parametrize(
    ("given", "bound"),
    [({"blocks": 40}, "blocks"), ({"max_context": 64}, "max_context"), ({}, "model")],
)
def test_a_dry_engine_says_what_limits_its_context(given: dict[str, int], bound: str) -> None:
    engine = dry(**given)
    assert engine.snapshot().context_bound == bound
    engine.close()


def test_words(client: httpx.Client, served: Served) -> None:
    ids = served.engine.tokenizer.encode("green garden")
    assert "".join(client.post("/engine/words", json={"tokens": ids}).json()["words"]) == "green garden"
    problem = client.post("/v1/completions", json={"prompt": [10**6]}).json()["error"]["message"]
    outside = problem.replace("prompt:", "tokens:")
    for route, field in (("words", "tokens"), ("texts", "tokens"), ("texts", "after")):
        answer = client.post(f"/engine/{route}", json={"tokens": [], field: [10**6]})
        found = answer.json()["error"]["message"]
        assert (answer.status_code, found) == (400, outside.replace("tokens:", f"{field}:"))
    for odd in (-1, 2**40):
        assert client.post("/engine/words", json={"tokens": [odd]}).json()["error"]["param"] == "tokens[0]"


class TestReplies:
    def begin(self, client: httpx.Client, **more: Any) -> dict[str, Any]:
        answer = client.post("/engine/replies", json={"prompt": "tell me", "params": LONG, **more})
        assert answer.status_code == 201, answer.text
        record: dict[str, Any] = answer.json()
        return record

    def read(
        self, client: httpx.Client, id: str, last: int, most: int = 10**9
    ) -> tuple[list[Any], int, bool]:
        """Return about `most` deltas after `last`, the count after them, and whether the reply ended."""
        deltas: list[Any] = []
        with client.stream("GET", f"/engine/replies/{id}", headers={"Last-Event-ID": str(last)}) as response:
            assert response.status_code == 200
            for kind, count, data in notes(response):
                if kind == "end":
                    return deltas, last, True
                deltas += [decode_delta(each) for each in data["deltas"]]
                last = int(count)
                if len(deltas) >= most:
                    return deltas, last, False
        return deltas, last, False

    def test_a_cut_connection_loses_no_delta(self, slow: Served) -> None:
        with slow.client() as client:
            params = {"max_tokens": 500, "ignore_eos": True}
            reply = self.begin(client, params=params)
            first, at, ended = self.read(client, reply["id"], 0, most=5)
            assert not ended
            assert at == len(first)
            [kept] = [each for each in slow.state.replies.of(OWNER) if each.id == reply["id"]]
            assert becomes(lambda: len(kept.deltas) > at + 3)  # they arrive without a reader
            with slow.at_full_speed():
                rest, _, ended = self.read(client, reply["id"], at)
                whole = client.post("/v1/completions", json={"prompt": "tell me", **params}).json()
            assert ended
            tokens = [token for delta in first + rest for token in delta.tokens]
            assert "".join(delta.text for delta in first + rest) == whole["choices"][0]["text"]
            assert len(tokens) == 500
            again, _, ended = self.read(client, reply["id"], 0)
            assert ended
            assert again == first + rest

    def test_a_reply_without_a_reader_is_aborted(self, slow: Served) -> None:
        with slow.client() as client:
            reply = self.begin(client, grace=0.05)
            kept = self.begin(client, grace=0.05, keep=True, params={"max_tokens": 15, "ignore_eos": True})

            def finish(id: str) -> Any:
                return {
                    each["id"]: each["finish"] for each in client.get("/engine/replies").json()["replies"]
                }[id]

            assert becomes(lambda: finish(reply["id"]) == "aborted")
            assert becomes(lambda: finish(kept["id"]) == "length")
            assert slow.becomes_idle()

    def test_the_oldest_replies_are_dropped(self) -> None:
        with serving(dry(), kept=2, kept_deltas=10) as served, served.client() as client:

            def kept() -> list[str]:
                return [each["id"] for each in client.get("/engine/replies").json()["replies"]]

            begun = []
            for tokens in (3, 3, 3, 9):
                params = {"max_tokens": tokens, "ignore_eos": True}
                begun.append(self.begin(client, params=params)["id"])
                assert becomes(lambda: served.state.gate.in_flight == 0)
                assert kept() == (begun[-2:] if tokens == 3 else begun[-1:])

    def test_a_reply_can_be_deleted(self, slow: Served) -> None:
        with slow.client() as client:
            reply = self.begin(client)
            assert client.delete(f"/engine/replies/{reply['id']}").status_code == 204
            assert slow.becomes_idle()
            assert client.get(f"/engine/replies/{reply['id']}").status_code == 404
            assert client.delete("/engine/replies/..%2f..").status_code == 404

    def test_a_reply_belongs_to_its_key(self) -> None:
        other = "sk-other-0123456789abcdef"
        with serving(dry(), keys=(KEY, other)) as served, served.client() as client:
            reply = self.begin(client, params={"max_tokens": 3})
            with served.client(headers={"Authorization": f"Bearer {other}"}) as stranger:
                assert stranger.get(f"/engine/replies/{reply['id']}").status_code == 404
                assert stranger.get("/engine/replies").json()["replies"] == []

    def test_words_come_with_logprobs(self, client: httpx.Client) -> None:
        reply = self.begin(client, params={"max_tokens": 3, "logprobs": 2})
        with client.stream("GET", f"/engine/replies/{reply['id']}") as response:
            [(_, _, data), *_] = list(notes(response))
        entry = decode_delta(data["deltas"][0]).logprobs[0]
        assert {str(entry.token), *(str(token) for token, _ in entry.top)} <= data["words"].keys()

    def test_a_bad_request_is_refused(self, client: httpx.Client) -> None:
        for body, param in (
            ({}, "prompt"),
            ({"prompt": "x", "params": {"temp": 1}}, "temp"),
            ({"prompt": "x", "params": {"temperature": "hot"}}, "temperature"),
            ({"prompt": "x", "params": 5}, "params"),
            ({"prompt": "x", "grace": -1}, "grace"),
            ({"prompt": "x", "foo": -1}, "foo"),
        ):
            answer = client.post("/engine/replies", json=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
        assert client.post("/engine/replies", json={"prompt": []}).status_code == 400
        headers = {"Last-Event-ID": "x"}
        id = self.begin(client, params={"max_tokens": 1})["id"]
        assert client.get(f"/engine/replies/{id}", headers=headers).status_code == 400

    def test_a_reply_to_messages_can_be_changed(self, slow: Served) -> None:
        with slow.client() as client:
            reply = self.begin(client, prompt=user("hi"))
            path = f"/engine/requests/{reply['request']}"
            assert client.post(f"{path}/update", json={"changes": {"max_tokens": 500}}).status_code == 204
            assert client.post(f"{path}/preempt").status_code == 204
            with slow.at_full_speed():
                deltas, _, ended = self.read(client, reply["id"], 0)
            assert ended
            assert sum(len(delta.tokens) for delta in deltas) == 500
            assert client.post(f"{path}/update", json={"changes": {"top_k": 3}}).status_code == 404
            assert client.post(f"{path}/abort").status_code == 204  # it has ended: no-op

    def test_forks_and_the_list_have_the_changed_parameters(self, slow: Served) -> None:
        with slow.client() as client:
            params = {"temperature": 3.0, "max_tokens": 400, "ignore_eos": True}
            reply, other = (self.begin(client, params=params) for _ in range(2))
            changes = {"temperature": 0, "top_k": 5}
            path = f"/engine/requests/{reply['request']}/update"
            assert client.post(path, json={"changes": changes}).status_code == 204
            body = {"id": reply["request"], "changes": {"max_tokens": 500}}
            assert client.post("/engine/commands/update", json=body).status_code == 200
            assert client.post(path, json={"changes": {"best_of": 3}}).status_code == 400
            changed = params | changes | {"max_tokens": 500}
            listed = {each["id"]: each["params"] for each in client.get("/engine/replies").json()["replies"]}
            assert (listed[reply["id"]], listed[other["id"]]) == (changed, params)
            fork = client.post(f"/engine/replies/{reply['id']}/fork", json={"params": {"top_k": 9}}).json()
            assert fork["params"] == changed | {"top_k": 9}
            for each in (reply, other, fork):
                client.delete(f"/engine/replies/{each['id']}")

    def test_log_probabilities_asked_for_later_have_their_words(self, slow: Served) -> None:
        with slow.client() as client:
            reply = self.begin(client, prompt=user("hi"))
            changes = {"logprobs": 1, "max_tokens": 500}
            path = f"/engine/requests/{reply['request']}/update"
            with client.stream("GET", f"/engine/replies/{reply['id']}") as stream:
                assert client.post(path, json={"changes": changes}).status_code == 204
                with slow.at_full_speed():
                    assert '"words"' in stream.read().decode()

    def test_a_request_is_aborted_by_its_id(self, slow: Served) -> None:
        with slow.client() as client:
            reply = self.begin(client)
            assert client.post(f"/engine/requests/{reply['request']}/abort").status_code == 204
            deltas, _, _ = self.read(client, reply["id"], 0)
            assert deltas[-1].finish.value == "aborted"

    @pytest.mark.parametrize("changes", [{}, {"temp": 1}, {"temperature": -5}, {"max_tokens": "many"}])
    def test_a_bad_change_is_refused(self, slow: Served, changes: dict[str, Any]) -> None:
        with slow.client() as client:
            reply = self.begin(client)
            answer = client.post(f"/engine/requests/{reply['request']}/update", json={"changes": changes})
            assert answer.status_code == 400
            client.delete(f"/engine/replies/{reply['id']}")


class TestWebSocket:
    def open(self, served: Served) -> ClientConnection:
        return connect(f"ws://127.0.0.1:{served.port}/ws", additional_headers=HEADERS)

    def next_message(self, socket: ClientConnection, kind: str) -> dict[str, Any]:
        """Return the next message of this type, skipping others."""
        while True:
            message: dict[str, Any] = json.loads(socket.recv(10))
            if message["type"] == kind:
                return message
            assert message["type"] != "error", message

    def send(self, socket: ClientConnection, type: str, id: str = "a", **more: Any) -> None:
        socket.send(json.dumps({"type": type, "id": id, **more}))

    def test_token_by_token(self, served: Served) -> None:
        with self.open(served) as socket:
            self.send(socket, "generate", prompt="tell me", params={"max_tokens": 9, "ignore_eos": True})
            started = json.loads(socket.recv(10))
            assert (started["type"], started["prompt_tokens"] > 0) == ("started", True)
            deltas = []
            while (message := json.loads(socket.recv(10)))["type"] == "deltas":
                deltas += [decode_delta(each) for each in message["deltas"]]
            assert message["usage"]["completion_tokens"] == 9
        with served.client() as client:
            whole = client.post("/v1/completions", json={"prompt": "tell me", "max_tokens": 9}).json()
        assert "".join(delta.text for delta in deltas) == whole["choices"][0]["text"]
        assert all(len(delta.tokens) == 1 for delta in deltas)

    def test_changes_and_cancel_while_it_runs(self, slow: Served) -> None:
        with self.open(slow) as socket:
            for name, length in (("a", 2000), ("b", 20_000)):
                params = {"max_tokens": length, "ignore_eos": True}
                self.send(socket, "generate", name, prompt=user(f"tell {name}"), params=params)
                self.next_message(socket, "started")
            self.send(socket, "update", "a", changes={"temperature": 0.5, "max_tokens": 500})
            assert self.next_message(socket, "updated")["changes"] == ["max_tokens", "temperature"]
            with slow.at_full_speed():
                assert self.next_message(socket, "done")["usage"]["completion_tokens"] == 500
            self.send(socket, "cancel", "b")
            assert self.next_message(socket, "done")["id"] == "b"
            self.send(socket, "cancel", "b")
            assert self.next_message(socket, "error")["error"]["param"] == "id"
        assert slow.becomes_idle()

    def test_a_client_that_disconnects_is_aborted(self, slow: Served) -> None:
        with self.open(slow) as socket:
            self.send(socket, "generate", prompt="tell me", params=LONG)
            self.next_message(socket, "deltas")
            assert slow.blocks_in_use() > 0
        assert slow.becomes_idle()

    @pytest.mark.parametrize(
        "message",
        [
            "",
            "{",
            "[]",
            '"x"',
            "[" * 5000,
            '{"type": "dance", "id": "a"}',
            '{"type": ["generate"], "id": "a"}',
            '{"type": "generate"}',
            '{"type": "generate", "id": 5, "prompt": "x"}',
            '{"type": "generate", "id": "a"}',
            '{"type": "generate", "id": "a", "prompt": [{"role": 5}]}',
            '{"type": "generate", "id": "a", "prompt": "x", "params": {"heat": 5}}',
            '{"type": "generate", "id": "a", "prompt": "x", "model": "y"}',
            '{"type": "generate", "id": "\\ud800", "prompt": "x", "params": {"max_tokens": 1000000}}',
            '{"type": "update", "id": "a", "changes": {"top_k": 1}}',
            '{"type": "cancel", "id": "a"}',
            b"\x00\xff",
        ],
        ids=range(17),
    )
    def test_a_bad_message_gets_an_error_and_the_socket_stays_open(
        self, served: Served, message: str | bytes
    ) -> None:
        with self.open(served) as socket:
            socket.send(message)
            assert json.loads(socket.recv(10))["type"] == "error"
            self.send(socket, "generate", prompt="x", params={"max_tokens": 1})
            assert self.next_message(socket, "done")["usage"]["completion_tokens"] == 1

    def test_sending_after_a_broken_frame_raises_disconnected(self) -> None:
        """uvicorn has sent its close frame and the socket is about to close, as if the client had left."""
        protocol = object.__new__(LenientWebSocket)
        protocol.handshake_complete = protocol.close_sent = True
        with pytest.raises(ClientDisconnected):
            asyncio.run(protocol.send({"type": "websocket.send", "text": "so"}))

    def test_an_id_is_used_once_at_a_time(self, slow: Served) -> None:
        with self.open(slow) as socket:
            self.send(socket, "generate", prompt="x", params=LONG)
            self.next_message(socket, "started")
            self.send(socket, "generate", prompt="x", params=LONG)
            error = self.next_message(socket, "error")["error"]
            assert "already in use by a running reply" in error["message"]
        assert slow.becomes_idle()

    @pytest.mark.parametrize("path", ["/ws", "/ws/events", "/ws/none"])
    def test_the_key_is_required(self, served: Served, path: str) -> None:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            with pytest.raises(InvalidStatus) as refused:
                connect(f"ws://127.0.0.1:{served.port}{path}", additional_headers=headers)
            assert refused.value.response.status_code == 401

    def test_a_message_that_is_too_large_closes_the_socket(self, served: Served) -> None:
        def talk(socket: ClientConnection) -> None:
            socket.send("x" * (33 * 2**20))
            socket.recv(10)

        with self.open(served) as socket, pytest.raises(ConnectionClosed):
            talk(socket)
        with self.open(served) as socket:
            self.send(socket, "generate", prompt="x", params={"max_tokens": 1})
            self.next_message(socket, "done")
