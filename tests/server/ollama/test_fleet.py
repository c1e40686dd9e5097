"""Ollama's lists of models, on a fleet and on ranks that share the model."""

from dataclasses import replace

import pytest

from engine.api.snapshot import RankView, ReplicaView, Snapshot
from tests.server.conftest import dry, serving


@pytest.mark.parametrize(
    ("states", "ranks", "weights", "sizes"),
    [
        (("ready", "ready"), (), 20, (10, 20)),
        (("ready", "stopped"), (), 10, (10, 10)),
        (("ready", "ready"), (5, 5, 5, 5), 10, (10, 20)),
        (("ready", "stopped"), (5, 9, 5, 9), 5, (14, 14)),
        ((), (5, 5), 5, (10, 10)),
        ((), (5, 3, 7), 5, (15, 15)),
    ],
)
def test_sizes(
    monkeypatch: pytest.MonkeyPatch,
    states: tuple[str, ...],
    ranks: tuple[int, ...],
    weights: int,
    sizes: tuple[int, int],
) -> None:
    """A model is as large as in one replica, with all its ranks; what is loaded is that of all replicas, and
    on CPUs not on a GPU. A snapshot has the weights of a rank of each replica that runs.
    """
    views = tuple(ReplicaView(number, state, "", "cpu", 0, 0, 8, 0, 0) for number, state in enumerate(states))
    each = len(ranks) // max(1, len(states))
    shared = tuple(RankView(at % max(1, each), "cpu", 1, 0, weights=own) for at, own in enumerate(ranks))
    with serving(dry()) as served, served.client() as client:
        shot = replace(
            served.host.snapshot(), replicas=views, ranks=shared, device="cpu", memory={"weights": weights}
        )

        async def snapshot() -> Snapshot:
            return shot

        monkeypatch.setattr(served.state.engine, "snapshot", snapshot)
        whole = client.get("/api/tags").json()["models"][0]["size"]
        loaded = client.get("/api/ps").json()["models"][0]
        assert ((whole, loaded["size"]), loaded["size_vram"]) == (sizes, 0)
