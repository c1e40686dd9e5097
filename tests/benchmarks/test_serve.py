"""The load benchmark's own parts: its client's reading of a stream, and the traces."""

import json
import lzma
import socket
import threading
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace

import pytest
from rich.progress import Progress
from tokenizers import Tokenizer

import engine
from minichat.bench.harness import Bench, Figure
from minichat.bench.load import client, measure
from minichat.bench.load.client import Exchange, LoadClients, Outcome, TimedRequest
from minichat.bench.load.http import WORDS, lengths, traced
from minichat.bench.load.traces import mooncake_prompts

POCKET = Path(engine.__file__).parent / "pocket"
USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
EVENTS = [
    b'data: {"choices":[{"text":"a"}],"usage":null}\n\n',
    b'data: {"choices":[{"text":"b"}],"usage":null}\n\n',
    b'data: {"choices":[],"usage":' + json.dumps(USAGE).encode() + b"}\n\n",
    b"data: [DONE]\n\n",
]


def test_prompts_of_text_have_as_many_tokens_as_those_of_ids() -> None:
    tokenizer = Tokenizer.from_file(str(POCKET / "tokenizer.json"))
    for word in WORDS:
        assert len(tokenizer.encode(f" {word}", add_special_tokens=False).ids) == 1, word


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_a_stream_is_read_however_it_is_split(size: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        exchange = Exchange(ours, Outcome(0.0), memoryview(b""), due=1.0)
        assert exchange.receive(0.0), "nothing has arrived yet"
        sent, now, running = HEAD + b"".join(EVENTS), 1.0, True
        for start in range(0, len(sent), size):
            if not running:
                assert start >= len(sent) - 2, "it ended too early"
                break
            theirs.sendall(sent[start : start + size])
            now += 1.0
            running = exchange.receive(now)
        assert not running
    one = exchange.outcome
    assert (one.prompt, one.completion, one.error) == (7, 5, "")
    assert one.first is not None and one.ended is not None
    assert one.first + sum(one.gaps) <= one.ended
    if size == 1:  # an arrival for each event; the last one is noticed before its blank line
        assert len(one.gaps) == len(EVENTS) - 2


def test_a_refusal_is_reported() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"HTTP/1.1 429 Too Many Requests\r\n\r\nretry later")
        exchange = Exchange(ours, Outcome(0.0), memoryview(b""), due=0.0)
        assert not exchange.receive(1.0)
    assert exchange.outcome.error.endswith("retry later")
    assert exchange.outcome.first is None


def test_a_server_that_is_not_there_is_reported() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = free.getsockname()
    outcomes = LoadClients(address, [TimedRequest(0.0, b""), TimedRequest(0.0, b"")], most=1).run()
    assert [one.error.split("] ")[-1] for one in outcomes] == ["Connection refused"] * 2


def test_the_time_of_a_request_begins_before_it_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is slow to accept is slow. Waiting for a place is not the server's time."""
    connect, late = socket.create_connection, 0.0

    def slowly(address: tuple[str, int]) -> socket.socket:
        nonlocal late
        late += 100.0
        return connect(address)

    monkeypatch.setattr(client, "time", SimpleNamespace(perf_counter=lambda: perf_counter() + late))
    with socket.create_server(("127.0.0.1", 0)) as server:
        answering = threading.Thread(target=answer, args=(server, 2))
        answering.start()
        monkeypatch.setattr(socket, "create_connection", slowly)
        orders = [TimedRequest(0.0, b"x"), TimedRequest(0.0, b"x")]
        outcomes = LoadClients(server.getsockname()[:2], orders, most=1).run()
        answering.join()
    assert all(one.first is not None and 100 <= one.first < 200 for one in outcomes)


def answer(server: socket.socket, times: int) -> None:
    for _ in range(times):
        with server.accept()[0] as connection:
            connection.recv(1)
            connection.sendall(HEAD + b"".join(EVENTS))


def test_failed_requests_are_not_counted_as_served() -> None:
    figures: list[Figure] = []
    bench = Bench(0, 1, Progress(disable=True), figures.append)
    served = [Outcome(0.0, first=0.1, ended=0.5, completion=5) for _ in range(4)]
    failed = [Outcome(0.0, error="refused"), Outcome(0.0, first=0.1, error="the server closed")]
    measure.report(bench, [(2.0, {}, [*served, *failed])], ttft=0.5, tpot=0.5)
    found = {each.name: each.median for each in figures}
    assert (found["requests"], found["failed"]) == (2.0, 2.0)


def test_a_server_that_hangs_up_while_it_is_sent_to_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        clients = LoadClients(server.getsockname()[:2], [TimedRequest(0.0, bytes(1 << 24))], most=1)
        clients.send_due()
        server.accept()[0].close()
        [one] = clients.run()
    assert one.error and one.first is None


def test_requests_of_both_forms_of_traces(tmp_path: Path) -> None:
    azure, mooncake = tmp_path / "azure.csv.xz", tmp_path / "mooncake.jsonl"
    azure.write_bytes(
        lzma.compress(
            b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
            b"2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:47.1805900,396,109\n"
        )
    )
    records = [(3000, 10, 2), (3500, 11, 3)]
    names = ("timestamp", "input_length", "output_length")
    mooncake.write_text("".join(json.dumps(dict(zip(names, each, strict=True))) + "\n" for each in records))
    assert traced(azure) == [(0.0, 374, 44), (pytest.approx(0.5), 396, 109)]
    assert traced(mooncake) == [(0.0, 10, 2), (pytest.approx(0.5), 11, 3)]
    assert lengths(str(mooncake), 1, 0.0, 0) == [(0.0, 10, 2)]


def test_a_mooncake_trace_becomes_prompts_with_the_same_prefixes(tmp_path: Path) -> None:
    hashes = [[0, 1, 2], [0, 3], [0, 1, 2, 4], [5], [0, 1] + [6] * 9]
    lengths = (1500, 1000, 2000, 400, 5000)
    lines = (json.dumps({"hash_ids": a, "input_length": b}) for a, b in zip(hashes, lengths, strict=True))
    (file := tmp_path / "mooncake.jsonl").write_text("\n".join(lines))
    first, second, third, alone = mooncake_prompts(file, share=1, longest=130)
    assert [*map(len, (first, second, third, alone))] == [93, 62, 125, 25]
    assert third[:93] == first and second[:32] == first[:32] and second[32:] != first[32:62]
    sampled = [mooncake_prompts(file, share=2, longest=130), mooncake_prompts(file, share=3, longest=130)]
    assert all((first in each) == (third in each) for each in sampled), "a conversation is kept or not"
    assert any(len(each) < 4 for each in sampled)


def test_poisson_arrivals_come_at_the_given_rate() -> None:
    arrivals = [at for at, _, _ in lengths("poisson", 2000, 20.0, 500)]
    assert arrivals == sorted(arrivals)
    assert 1999 / arrivals[-1] == pytest.approx(20.0, rel=0.1)
    assert {at for at, _, _ in lengths("closed", 5, 20.0, 500)} == {0.0}


def test_a_server_that_hangs_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_LONGEST", 0.2)
    bench = Bench(0, 1, Progress(disable=True), lambda figure: None)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        base = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(SystemExit, match=r"did not serve the load within 0\.2 s"):
            measure.measure(bench, measure.ServerLoad([(0.0, 4, 2)], clients=1), base, {})
