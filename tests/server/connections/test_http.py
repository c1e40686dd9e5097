"""HTTP details that clients other than OpenAI's rely on."""

import gzip
import json
import re
import socket
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.sync.client import connect

from engine.api.errors import BadInput
from engine.server.http.binding import tcp_socket
from tests.server.conftest import KEY, MODEL, Served, dry, raw, serving, user

CHAT = "/v1/chat/completions"
BODY = json.dumps({"messages": user("hi"), "max_tokens": 3}).encode()
POST = f"POST {CHAT} HTTP/1.1"
KEYED = f"Authorization: Bearer {KEY}"


def exchange(served: Served, *parts: bytes) -> bytes:
    """Send bytes in these parts; return all the server sends until it closes the connection."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in parts:
            connection.sendall(part)
        answer = b""
        while part := connection.recv(65536):
            answer += part
    return answer


def upgrade_head(protocol: str, connection: str = "Upgrade, HTTP2-Settings, close") -> bytes:
    """A head that offers an upgrade, as Java's client and curl --http2 send it."""
    lines = [POST, "Host: localhost", KEYED, "Content-Type: application/json"]
    lines += [f"Content-Length: {len(BODY)}", f"Connection: {connection}", f"Upgrade: {protocol}"]
    return "\r\n".join([*lines, "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA", "", ""]).encode()


def test_a_request_that_offers_another_protocol_keeps_its_body(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    head = upgrade_head("h2c")
    for parts in ([head + BODY], [head, BODY], [head[:40], head[40:-2], head[-2:] + BODY[:9], BODY[9:]]):
        answer = exchange(served, *parts)
        assert answer.startswith(b"HTTP/1.1 200 OK"), answer
        assert b'"completion_tokens":3' in answer
    several = f"{POST}\r\nHost: localhost\r\n{KEYED}\r\nContent-Type: application/json\r\n".encode()
    several += (
        b"Connection: Upgrade\r\nConnection: close\r\nUpgrade: TLS/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    assert b" 200 OK" in exchange(served, several, b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY))
    assert not caplog.records, "clients could fill the disk with log lines"


def test_a_stream_over_http_1_0_has_no_chunks(served: Served) -> None:
    """Its clients would take their sizes for text. The end of the connection ends it."""
    body = json.dumps({"messages": user("hi"), "max_tokens": 3, "stream": True}).encode()
    head = f"POST {CHAT} HTTP/1.0\r\n{KEYED}\r\nContent-Type: application/json\r\n"
    answer = exchange(served, f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    fields, _, text = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in fields.lower()
    assert text.startswith(b"data: {") and text.endswith(b"data: [DONE]\n\n")


def test_a_request_after_an_upgrade_offer_is_answered(served: Served) -> None:
    head = upgrade_head("h2c", "Upgrade, HTTP2-Settings")
    following = f"GET /health HTTP/1.1\r\nHost: localhost\r\n{KEYED}\r\nConnection: close\r\n\r\n".encode()
    answer = exchange(served, head + BODY + following)
    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert answer.endswith(b'{"status":"ready"}')


@pytest.mark.parametrize("line", ["CONNECT localhost:80 HTTP/1.1", "CONNECT /health HTTP/1.1"])
def test_a_tunnel_is_refused(served: Served, line: str) -> None:
    assert raw(served, line, KEYED).startswith(b"HTTP/1.1 400 ")


def test_a_compressed_body_is_refused(client: httpx.Client) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    answer = client.post(CHAT, content=gzip.compress(BODY), headers=headers)
    assert answer.status_code == 415
    assert "content-encoding" in answer.json()["error"]["message"]
    assert client.post(CHAT, content=BODY, headers=headers | {"content-encoding": "identity"}).is_success


def test_health_answers_a_head_request(served: Served) -> None:
    answer = httpx.head(f"{served.url}/health")
    assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize(
    ("path", "key", "status", "word"),
    [
        ("/ws/events?snapshots=often", KEY, 400, "snapshots: must be a number"),
        ("/ws/events?snapshots=0", KEY, 400, "snapshots: must be at least 0.05"),
        ("/ws/nothing", KEY, 404, "'/ws/nothing'"),
        ("/v1/models", KEY, 404, "'/v1/models'"),
        ("/ws", "sk-of-a-stranger", 401, "invalid API key"),
    ],
)
def test_a_refused_websocket_gives_the_reason(
    served: Served, caplog: pytest.LogCaptureFixture, path: str, key: str, status: int, word: str
) -> None:
    url = f"ws://127.0.0.1:{served.port}{path}"
    with (
        pytest.raises(InvalidStatus) as refused,
        connect(url, additional_headers={"Authorization": f"Bearer {key}"}),
    ):
        pass
    assert refused.value.response.status_code == status
    assert word in json.loads(refused.value.response.body)["error"]["message"]
    httpx.get(f"{served.url}/health")  # the server has finished the refused one by now
    assert not caplog.records


def test_what_strangers_send_is_not_logged(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    assert b" 400 " in exchange(served, b"nothing like HTTP\r\n\r\n")
    url = f"ws://127.0.0.1:{served.port}/ws"
    with connect(url, additional_headers={"Authorization": f"Bearer {KEY}"}) as broken:
        broken.send(b'{"type": "generate\xff"}', text=True)
        with pytest.raises(ConnectionClosedError) as closed:
            broken.recv(30)
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1007  # not UTF-8
    httpx.get(f"{served.url}/health")  # the server has finished the broken one by now
    assert not caplog.records, "clients could fill the disk with log lines"


def test_a_port_is_taken_before_the_model_loads() -> None:
    """Otherwise the second of two servers would report that it serves while its port is taken."""
    with tcp_socket("127.0.0.1", 0) as first, pytest.raises(BadInput, match="in use"):
        tcp_socket("127.0.0.1", first.getsockname()[1])


def test_the_routes_of_the_first_edition_exist(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    routes = {
        re.sub(r"{\w+}", "{}", f"{method.upper()} {path}")
        for path, each in document["paths"].items()
        for method in each
    }
    first = Path(__file__).with_name("first_edition_routes.txt").read_text(encoding="utf-8").split("\n")
    assert {re.sub(r"{\w+}", "{}", route) for route in first if route} <= routes


@pytest.mark.parametrize("log", [True, False])
def test_prompts_of_every_route_are_logged_only_if_asked(log: bool, caplog: pytest.LogCaptureFixture) -> None:
    with serving(dry(), log_prompts=log) as served, served.client() as client:
        with caplog.at_level("INFO", "minichat.server"):
            for path, body in (
                ("/v1/completions", {"prompt": "a riddle"}),
                ("/api/generate", {"model": MODEL, "prompt": "a riddle", "stream": False}),
                ("/engine/replies", {"prompt": "a riddle"}),
            ):
                assert client.post(path, json=body).is_success
        assert ["a riddle" in message for message in caplog.messages] == [True] * (3 if log else 0)
