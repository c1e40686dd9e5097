"""The JSON form of events, deltas, snapshots and sampling parameters between processes.

docs/wire.md describes it. New kinds of events and fields with defaults need no new version. Any other change
must increase VERSION.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from engine.api.codec import Codec, DecodeError, codec, field_types, record
from engine.api.config import EngineConfig
from engine.api.errors import BadInput, BadWire, EngineError
from engine.api.events import Delta, Event
from engine.api.params import SamplingParams
from engine.api.snapshot import Snapshot

VERSION = 1

_DEFAULTS = SamplingParams()
_PARAMS = {name: codec(kind) for name, kind in field_types(SamplingParams).items()}
_DELTA = record(Delta, sparse=True)
_kinds: dict[str, Any] = {}  # event classes by kind; updated when an unknown kind is met


def encode_event(event: Event) -> dict[str, Any]:
    kind: Any = type(event)
    return {"v": VERSION, "kind": event.kind, **codec(kind).write(event)}


def decode_event(value: Any) -> Event:
    """Decode an event. An unknown kind becomes a plain `Event` with step and time."""
    kind = check_version("event", value).get("kind")
    if type(kind) is not str:
        raise BadWire(f"event: kind must be a string, not {kind!r}")
    if kind not in _kinds:
        _kinds.update((each.__name__.lower(), each) for each in _below(Event))
    return _read(f"event {kind}", codec(_kinds.get(kind, Event)), value)


def encode_delta(delta: Delta) -> dict[str, Any]:
    """Encode a delta without its empty fields."""
    return {"v": VERSION, **_DELTA.write(delta)}


def decode_delta(value: Any) -> Delta:
    return _read("delta", _DELTA, check_version("delta", value))


def encode_snapshot(snapshot: Snapshot) -> dict[str, Any]:
    return {"v": VERSION, **codec(Snapshot).write(snapshot)}


def decode_snapshot(value: Any) -> Snapshot:
    return _read("snapshot", codec(Snapshot), check_version("snapshot", value))


def params_to_json(params: SamplingParams) -> dict[str, Any]:
    """The fields that differ from the defaults."""
    return {
        name: part.write(each)
        for name, part in _PARAMS.items()
        if (each := getattr(params, name)) != getattr(_DEFAULTS, name)
    }


def params_from_json(value: Any, base: SamplingParams = _DEFAULTS) -> SamplingParams:
    """`base` with the given fields replaced. An invalid field raises BadParams with its name."""
    return base.changed(**changes_from_json(value))


def changes_to_json(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The given fields as JSON, validated."""
    params = _DEFAULTS.changed(**changes)
    return {name: _PARAMS[name].write(getattr(params, name)) for name in changes}


def changes_from_json(value: Any, field: str = "params") -> dict[str, Any]:
    """The arguments for `SamplingParams.changed`, which also reports invalid fields. `field`: the value's."""
    if not isinstance(value, Mapping):
        raise BadInput(f"{field} must be an object, not {value!r:.60}", field=field)
    return {name: _param(name, each) for name, each in value.items()}


def _param(name: str, value: Any) -> Any:
    try:
        return _PARAMS[name].read(value) if name in _PARAMS else value
    except DecodeError:
        return value  # `stop` may be a single string; `changed` rejects anything else


def config_to_json(config: EngineConfig) -> dict[str, Any]:
    return {"v": VERSION, **codec(EngineConfig).write(config)}


def config_from_json(value: Any) -> EngineConfig:
    return _read("engine configuration", codec(EngineConfig), check_version("engine configuration", value))


def encode_error(error: EngineError) -> dict[str, Any]:
    return {"v": VERSION, **error.to_wire()}


def decode_error(value: Any) -> EngineError:
    return EngineError.from_wire(check_version("error", value))


def check_version(what: str, value: Any) -> dict[str, Any]:
    """Check that a value is an object of this version."""
    if type(value) is not dict:
        raise BadWire(f"{what}: must be an object, not {value!r:.60}")
    version = value.get("v")
    if type(version) is not int:
        raise BadWire(f"{what}: v must be the protocol version, a whole number, not {version!r:.60}")
    if version != VERSION:
        newer = "this program" if version > VERSION else "the engine"
        raise BadWire(f"the engine uses protocol version {version}, this program {VERSION}; update {newer}")
    return value


def _read(what: str, part: Codec, value: Any) -> Any:
    try:
        return part.read(value)
    except DecodeError as error:
        raise BadWire(f"{what}: {error}") from None


def _below(kind: Any) -> Iterator[Any]:
    for each in kind.__subclasses__():
        yield each
        yield from _below(each)
