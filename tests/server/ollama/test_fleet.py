"""Ollama's lists of models, on a fleet."""

from dataclasses import replace

import pytest

from engine.api.snapshot import ReplicaView, Snapshot
from tests.server.conftest import dry, serving


def test_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model is as large as in one replica; what is loaded is that of all, and on CPUs not on a GPU."""
    two = tuple(ReplicaView(number, "ready", "", "cpu", 0, 0, 8, 0, 0) for number in (0, 1))
    with serving(dry()) as served, served.client() as client:
        shot = replace(served.host.snapshot(), replicas=two, device="2 x cpu", memory={"weights": 20})

        async def snapshot() -> Snapshot:
            return shot

        monkeypatch.setattr(served.state.engine, "snapshot", snapshot)
        assert client.get("/api/tags").json()["models"][0]["size"] == 10
        loaded = client.get("/api/ps").json()["models"][0]
        assert (loaded["size"], loaded["size_vram"]) == (20, 0)
