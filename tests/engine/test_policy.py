"""A policy by its name, and the error for a package whose policy is not usable."""

from importlib.metadata import EntryPoint

import pytest

from engine.api.errors import BadInput
from engine.scheduling import policy


class Half:
    """It says who goes first, and forgets when to wait."""

    name = "half"

    def rank(self, request: object) -> tuple[float, ...]:
        return ()


def test_what_a_class_of_a_package_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint("half", f"{__name__}:Half", policy.GROUP)]
    monkeypatch.setattr(policy, "entry_points", lambda group: points)
    assert policy.names() == ["fcfs", "half", "latency", "priority"]
    with pytest.raises(BadInput, match="policy 'half' is not usable: its class lacks hold"):
        policy.choose("half")
    assert "half" not in policy.POLICIES
