"""Frames that the first edition wrote are still read: `first_edition.json`."""

import json
from pathlib import Path
from typing import Any

from engine.api import wire
from engine.api.params import SamplingParams

FRAMES: dict[str, Any] = json.loads(
    Path(__file__).with_name("first_edition.json").read_text(encoding="utf-8")
)


def contains(value: Any, part: Any) -> bool:
    """Whether objects in `value` have at least the members of those in `part`."""
    if isinstance(part, dict):
        return all(name in value and contains(value[name], each) for name, each in part.items())
    return bool(value == part)


def test_events() -> None:
    for frame in FRAMES["events"]:
        event = wire.decode_event(frame)
        assert type(event).__name__.lower() == frame["kind"]
        assert contains(wire.encode_event(event), frame)


def test_deltas() -> None:
    for frame in FRAMES["deltas"]:
        assert contains(wire.encode_delta(wire.decode_delta(frame)), frame)


def test_errors() -> None:
    for frame in FRAMES["errors"]:
        error = wire.decode_error(frame)
        assert (type(error).__name__, str(error)) == (frame["error"], frame["message"])
        assert error.field == frame["about"].get("field", "")


def test_a_snapshot() -> None:
    assert contains(wire.encode_snapshot(wire.decode_snapshot(FRAMES["snapshot"])), FRAMES["snapshot"])


def test_parameters_and_the_configuration() -> None:
    wanted = SamplingParams(temperature=0.4, top_p=0.9, stop=("a",), logit_bias=((5, 1.0),))
    assert wire.params_from_json(FRAMES["params"]) == wanted
    config = wire.config_from_json(FRAMES["config"])
    assert (config.model, config.quantization, config.blocks) == ("pocket", "int8", 64)
