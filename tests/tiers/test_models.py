"""Real models over the disk tier: greedy replies are those of an engine that never stopped."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from engine.api.cache_spec import KV_SCHEMES
from engine.api.events import Admitted, Event
from engine.kv.tiers.disk import DiskTier
from engine.serving.engine import Engine
from tests.cases import one_row_of
from tests.runner.small import ask, drain, engine_on, make

PROMPT = [*range(3, 63)]


@contextmanager
def over_disk(model: Path, disk: Path, **config: Any) -> Iterator[tuple[Engine, list[Admitted]]]:
    engine, seen = engine_on(model, kv_disk=f"{disk}:0.1", **config), list[Admitted]()

    def see(event: Event) -> None:
        if isinstance(event, Admitted):
            seen.append(event)

    engine.bus.subscribe(see)
    try:
        yield engine, seen
    finally:
        for tier in engine.scheduler.transfers.tiers.values():
            if isinstance(tier, DiskTier):
                tier.flush()
            tier.close()


def reply(engine: Engine, prompt: list[int]) -> list[int]:
    _, output = ask(engine, prompt)
    drain(engine)
    return output.tokens


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama") / "model"
    folder.mkdir()
    make("llama", folder)
    return folder


@pytest.mark.parametrize(("kv", "scheme"), one_row_of(3, product(KV_SCHEMES, ["none", "int8"])))
def test_a_chat_goes_on_in_a_new_engine(model: Path, tmp_path: Path, kv: str, scheme: str) -> None:
    config: dict[str, Any] = {"kv_scheme": kv, "quantization": scheme}
    plain = engine_on(model, **config)
    first = reply(plain, PROMPT)
    second = [*PROMPT, *first, 5, 6, 7]
    expected = reply(plain, second)
    with over_disk(model, tmp_path, **config) as (engine, _):
        assert reply(engine, PROMPT) == first
    with over_disk(model, tmp_path, **config) as (engine, seen):
        assert reply(engine, second) == expected
    assert [(each.tier, each.loaded) for each in seen] == [("disk", True)]
    assert seen[0].held == seen[0].cached >= len(PROMPT) // 16 * 16


def test_blocks_are_found_again_when_a_scheme_returns(model: Path, tmp_path: Path) -> None:
    with over_disk(model, tmp_path, preemption="swap") as (engine, seen):  # whatever was measured
        before = reply(engine, PROMPT)
        for scheme in ("int8", "none"):
            engine.set_quantization(scheme)
            drain(engine)
            again = reply(engine, PROMPT)
        assert again == before
    assert [each.loaded for each in seen] == [False, False, True]
