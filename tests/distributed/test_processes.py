"""Each way to use several devices, as `minichat serve` starts it: processes that reply as one engine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.api.config import EngineConfig
from engine.api.params import SamplingParams
from engine.fleet.fleet import Fleet
from engine.host.client import EngineClient
from engine.host.thread import EngineThread
from engine.start import start
from minichat.cli import parser
from minichat.commands.options import engine_config
from minichat.commands.serve import ServerCallbacks, check, engine
from tests.cases import soak

GREEDY = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
PROMPTS = [[*range(at, at + 2 * at)] for at in (20, 40, 60, 80)]
COMMON = "serve --device cpu --dtype float32 --blocks 256 --kv-disk off"


def replies(client: EngineClient) -> list[tuple[int, ...]]:
    streams = [client.submit(each, GREEDY) for each in PROMPTS]
    return [each.result().tokens for each in streams]


def processes(client: EngineClient) -> set[int]:
    if isinstance(client, Fleet):
        return {each.pid for each in client._replicas.values()}  # type: ignore[attr-defined]
    return {each.pid for each in client.snapshot().ranks}


@pytest.fixture(scope="module")
def expected() -> Iterator[list[tuple[int, ...]]]:
    alone = EngineThread(start(EngineConfig(model="pocket", device="cpu", dtype="float32", blocks=256)))
    yield replies(alone)
    alone.close()


@pytest.mark.parametrize(
    "words", ["--replicas 2", *soak("--tp 2", "--pp 2", "--prefill-gpus 1 --decode-gpus 1")]
)
def test_two_processes_reply_as_one_engine(
    words: str, expected: list[tuple[int, ...]], tmp_path: Path
) -> None:
    options = parser().parse_args(f"{COMMON} {words}".split())
    check(options)
    callbacks = ServerCallbacks(lambda done, total: None, lambda: None, tmp_path / "engine.log")
    client = engine(options, engine_config(options), callbacks, None)
    try:
        assert replies(client) == expected
        own = processes(client)
        assert len(own) == 2
        for pid in own:
            assert "libtorch_cpu" in Path(f"/proc/{pid}/maps").read_text(), "it computes nothing"
    finally:
        client.close()
