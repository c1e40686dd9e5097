"""Gauges of a fleet."""

from dataclasses import replace

import pytest

from engine.api.snapshot import ReplicaView
from tests.server.conftest import dry, serving
from tests.server.exposition import families


@pytest.mark.parametrize(
    ("states", "usage"),
    [(("ready", "draining"), 0.125), (("ready", "stopped"), 0.25), (("dead", "restarting"), 0.125)],
)
def test_only_replicas_that_run_have_room(states: tuple[str, ...], usage: float) -> None:
    with serving(dry(blocks=64)) as served:
        shot, text = served.host.snapshot(), served.state.metrics.text
        replicas = tuple(
            ReplicaView(number, state, "", "cpu", 0, 0, 32, 0, 0) for number, state in enumerate(states)
        )
        busy = replace(shot, replicas=replicas, blocks=replace(shot.blocks, size=64, in_use=8))
        found = families(text(busy))
    assert found["minichat:kv_cache_usage_perc"].value() == usage


@pytest.mark.parametrize(("state", "up"), [("draining", 1), ("stopped", 0), ("restarting", 0), ("dead", 0)])
def test_a_fleet_without_a_process_is_not_up(state: str, up: int) -> None:
    with serving(dry()) as served:
        found = families(served.state.metrics.text(replace(served.host.snapshot(), state=state)))
    assert found["minichat:engine_up"].value() == up
    assert ("minichat:engine_sleep_state" in found) is bool(up)
