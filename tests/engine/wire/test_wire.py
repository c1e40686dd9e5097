"""JSON on the wire round-trips, and malformed JSON is refused with the name of the bad field."""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from engine.api import errors, events, wire
from engine.api.codec import MAX_COLUMN, codec, field_types
from engine.api.config import EngineConfig
from engine.api.errors import BadInput, BadParams, BadWire, EngineError, UnknownRequest
from engine.api.events import Delta, Event, TokenLogprob
from engine.api.params import FIELDS, Grammar, SamplingParams
from engine.api.request import Finish
from engine.api.snapshot import BlockView, RequestView, Snapshot
from tests.engine.ledger import ledger_engine

KINDS = [each for each in vars(events).values() if isinstance(each, type) and issubclass(each, Event)]
COLUMN_TYPES = ["bool", "int8", "int32", "int64", "uint8", "uint64", "float32", "float64"]


def sent(value: Any) -> Any:
    """Send through a real wire: to strict JSON text and back."""
    return json.loads(json.dumps(value, allow_nan=False))


def columns() -> st.SearchStrategy[np.ndarray]:
    return st.sampled_from(COLUMN_TYPES).flatmap(
        lambda kind: st.one_of(
            arrays.arrays(kind, st.integers(0, 40)),
            st.tuples(arrays.arrays(kind, 5), arrays.arrays(np.int16, 5, elements=st.integers(0, 300))).map(
                lambda both: np.repeat(*both)
            ),
        )
    )


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for any value of a type, derived from the same fields as the codec."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is np.ndarray:
        return columns()
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is UnionType:
        return st.one_of([st.none() if each is NoneType else values(each) for each in arguments])
    if origin is tuple:
        if arguments[-1] is ...:
            return st.lists(values(arguments[0]), max_size=5).map(tuple)
        return st.tuples(*map(values, arguments))
    if origin is dict:
        return st.dictionaries(values(arguments[0]), values(arguments[1]), max_size=4)
    if issubclass(kind, Enum):
        return st.sampled_from(list(kind))
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        return st.builds(kind, **{name: values(each) for name, each in field_types(kind).items()})
    return {
        bool: st.booleans(),
        int: st.integers(-(2**63), 2**64),
        float: st.floats(),
        str: st.text(st.characters()),
        bytes: st.binary(),
    }[kind]


def same(a: Any, b: Any) -> bool:
    """Compare to the last bit and type. == is wrong here for NaN, -0.0, 1 and 1.0, and arrays."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    if isinstance(a, float):
        return np.float64(a).tobytes() == np.float64(b).tobytes() or (a != a and b != b)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if is_dataclass(a):
        return all(same(getattr(a, each.name), getattr(b, each.name)) for each in fields(a))
    return bool(a == b)


class TestRoundTrips:
    @pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
    def test_every_event(self, kind: type[Event]) -> None:
        @given(values(kind))
        def check(event: Event) -> None:
            assert same(wire.decode_event(sent(wire.encode_event(event))), event)

        check()

    def test_event_kinds_are_distinct(self) -> None:
        assert len(KINDS) > 10
        assert len({kind.__name__.lower() for kind in KINDS}) == len(KINDS)

    @given(values(Delta))
    def test_deltas(self, delta: Delta) -> None:
        assert same(wire.decode_delta(sent(wire.encode_delta(delta))), delta)

    @given(values(Snapshot))
    def test_snapshots(self, snapshot: Snapshot) -> None:
        assert same(wire.decode_snapshot(sent(wire.encode_snapshot(snapshot))), snapshot)

    @given(columns())
    def test_columns(self, column: np.ndarray) -> None:
        part = codec(np.ndarray)
        assert same(part.read(sent(part.write(column))), column)

    def test_a_snapshot_of_an_engine_at_work(self) -> None:
        engine = ledger_engine(blocks=64, context=200)
        for n in range(6):
            engine.submit([n, 2, 3], SamplingParams(max_tokens=50, seed=n), lambda delta: None)
        for _ in range(20):
            engine.step()
        snapshot = engine.snapshot()
        assert snapshot.running == 6 and snapshot.form_times
        assert same(wire.decode_snapshot(sent(wire.encode_snapshot(snapshot))), snapshot)

    @pytest.mark.parametrize(
        "params",
        [
            SamplingParams(),
            SamplingParams(temperature=0, top_k=5, seed=2**64 - 1, stop=("a", "b\n"), stop_ids=(1, 2)),
            SamplingParams(logit_bias=((5, -1.5), (7, 2.0)), max_tokens=9, min_tokens=3, logprobs=0),
            SamplingParams(grammar=Grammar("json", '{"type": "object"}')),
            SamplingParams(ignore_eos=True, min_p=0.25, top_p=0.1, repetition_penalty=1.1),
        ],
    )
    def test_params(self, params: SamplingParams) -> None:
        assert wire.params_from_json(sent(wire.params_to_json(params))) == params

    def test_a_configuration(self) -> None:
        config = EngineConfig(model="m", blocks=7, depth=1, prefix_cache=False, seed=2**63)
        assert wire.config_from_json(sent(wire.config_to_json(config))) == config

    @pytest.mark.parametrize(
        "error",
        [
            BadParams("top_k", "must be a whole number from 0 to 5, not 'x'"),
            *(
                kind(f"a {kind.__name__}")
                for kind in vars(errors).values()
                if isinstance(kind, type) and issubclass(kind, EngineError) and kind is not BadParams
            ),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_errors_keep_class_sentence_and_fields(self, error: EngineError) -> None:
        back = wire.decode_error(sent(wire.encode_error(error)))
        assert (type(back), str(back), vars(back)) == (type(error), str(error), vars(error))


class TestFields:
    """A field added to a class is sent without further code, or the tests above fail."""

    def test_a_new_event_needs_no_codec(self) -> None:
        @dataclass(frozen=True, slots=True)
        class Steered(Event):
            request: int
            why: str = "so"

        event = Steered(1, 0.5, 7, "a word")
        assert wire.decode_event(sent(wire.encode_event(event))) == event

    def test_a_type_without_a_codec_is_refused(self) -> None:
        @dataclass(frozen=True)
        class Unsupported:
            what: complex

        with pytest.raises(TypeError, match="complex"):
            codec(Unsupported)

    def test_fields_of_a_newer_engine_are_ignored(self) -> None:
        event = events.Queued(3, 1.0, 5, 9)
        assert wire.decode_event(wire.encode_event(event) | {"colour": "red"}) == event

    def test_an_unknown_kind_is_a_plain_event(self) -> None:
        assert wire.decode_event({"v": 1, "kind": "levitated", "step": 3, "at": 1, "height": 2}) == Event(
            3, 1.0
        )

    def test_a_missing_field_takes_its_default(self) -> None:
        assert wire.decode_delta({"v": 1, "request": 4}) == Delta(4)

    def test_deltas_are_short(self) -> None:
        assert wire.encode_delta(Delta(4, (17,), " so")) == {
            "v": 1,
            "request": 4,
            "tokens": [17],
            "text": " so",
        }

    def test_nan_and_infinity_are_strings(self) -> None:
        delta = Delta(0, (1,), "", (TokenLogprob(1, float("-inf"), 9, ()),))
        assert sent(wire.encode_delta(delta))["logprobs"][0]["logprob"] == "-Infinity"


class TestRefusals:
    @pytest.mark.parametrize(
        ("version", "words"),
        [
            (2, "the engine uses protocol version 2, this program 1; update this program"),
            (0, "the engine uses protocol version 0, this program 1; update the engine"),
        ],
    )
    def test_other_versions(self, version: int, words: str) -> None:
        value = {"v": version, "kind": "died", "step": 0, "at": 0.0, "error": ""}
        readers: list[Callable[[Any], Any]] = [
            wire.decode_event,
            wire.decode_delta,
            wire.decode_snapshot,
            wire.config_from_json,
            wire.decode_error,
        ]
        for read in readers:
            with pytest.raises(BadWire) as caught:
                read(value)
            assert str(caught.value) == words

    @pytest.mark.parametrize(
        ("value", "words"),
        [
            ([], "event: must be an object, not []"),
            ({"kind": "died"}, "event: v must be the protocol version, a whole number, not None"),
            ({"v": True, "kind": "died"}, "a whole number, not True"),
            ({"v": 1, "step": 0}, "event: kind must be a string, not None"),
            ({"v": 1, "kind": "died", "step": 0, "at": 0.0}, "event died: error is missing"),
            ({"v": 1, "kind": "died", "step": True, "at": 0.0, "error": ""},
             "step must be a whole number, not True"),
            ({"v": 1, "kind": "died", "step": 1.0, "at": 0.0, "error": ""},
             "step must be a whole number, not 1.0"),
            ({"v": 1, "kind": "died", "step": 1, "at": "soon", "error": ""},
             "at must be a number, not 'soon'"),
            ({"v": 1, "kind": "died", "step": 1, "at": 10**400, "error": ""}, "at must be a number"),
            ({"v": 1, "kind": "stepbroke", "step": 1, "at": 0, "error": "", "requests": [1, "x"]},
             "event stepbroke: requests must be a whole number, not 'x'"),
        ],
    )  # fmt: skip
    def test_events(self, value: Any, words: str) -> None:
        with pytest.raises(BadWire) as caught:
            wire.decode_event(value)
        assert words in str(caught.value)

    def test_an_error_names_the_path_of_the_field(self) -> None:
        value = wire.encode_delta(Delta(0, (1,), "", (TokenLogprob(1, -1.0, 9, ()),), Finish.STOP))
        value["logprobs"][0]["rank"] = "first"
        with pytest.raises(BadWire, match=r"^delta: logprobs\.rank must be a whole number, not 'first'$"):
            wire.decode_delta(value)
        with pytest.raises(
            BadWire, match="finish must be one of stop, length, aborted, failed, not 'enough'"
        ):
            wire.decode_delta({"v": 1, "request": 0, "finish": "enough"})

    @pytest.mark.parametrize(
        "column",
        [
            7,
            {"dtype": "int32", "as": "int8"},
            {"dtype": "object", "as": "int8", "data": ""},
            {"dtype": "int32", "as": ["int8"], "data": ""},
            {"dtype": "int32", "as": "int32", "data": "AAA="},
            {"dtype": "int32", "as": "int8", "data": "?"},
            {"dtype": "int32", "as": "int8", "data": "AA==", "runs": {}},
            {"dtype": "int32", "as": "int8", "data": "AA==",
             "runs": codec(np.ndarray).write(np.array([1, 2]))},
            {"dtype": "int32", "as": "int8", "data": "AA==", "runs": codec(np.ndarray).write(np.array([-1]))},
            {"dtype": "int32", "as": "int8", "data": "AA==",
             "runs": codec(np.ndarray).write(np.array([MAX_COLUMN + 1]))},
            {"dtype": "int32", "as": "int8", "data": "AAA=",
             "runs": codec(np.ndarray).write(np.array([2**62, 2**62]))},
        ],
    )  # fmt: skip
    def test_columns(self, column: Any) -> None:
        value = wire.encode_snapshot(ledger_engine(blocks=4).snapshot())
        value["blocks"]["refs"] = column
        with pytest.raises(BadWire, match=r"^snapshot: blocks\.refs"):
            wire.decode_snapshot(value)

    @pytest.mark.parametrize("name", FIELDS)
    @pytest.mark.parametrize("bad", [{"a": []}, [[[]]], "?" * 9], ids=["object", "lists", "text"])
    def test_params_name_the_field(self, name: str, bad: Any) -> None:
        if (name, bad) == ("stop", "?" * 9):
            assert wire.params_from_json({"stop": bad}).stop == (bad,)
            return
        with pytest.raises(BadParams) as caught:
            wire.params_from_json({name: bad})
        assert caught.value.field == name

    def test_unknown_params(self) -> None:
        with pytest.raises(BadParams, match=r"^topk: is not a sampling parameter"):
            wire.params_from_json({"topk": 3})
        with pytest.raises(BadInput, match="must be an object, not 3"):
            wire.params_from_json(3)

    def test_an_unknown_error_keeps_its_message(self) -> None:
        value = wire.encode_error(UnknownRequest("no request 3 is alive")) | {"kind": "Enchanted"}
        error = wire.decode_error(value)
        assert (type(error), str(error)) == (EngineError, "no request 3 is alive")


class TestSize:
    def large_snapshot(self, size: int) -> Snapshot:
        """A full cache: 64 requests whose blocks are interleaved."""
        owner = np.arange(size, dtype=np.int64) % 64
        everywhere = np.ones(size, np.int32)
        place = np.arange(size, dtype=np.int32) // 64
        blocks = BlockView(size, everywhere, owner, 16 * everywhere, np.arange(size) // 64, size, 0, 0, place)
        requests = tuple(
            RequestView(n, "decode", "", 9, 9, 9, 99, 0, 0, 0, tuple(range(n, size, 64)), ())
            for n in range(64)
        )
        return replace(ledger_engine(blocks=4).snapshot(), blocks=blocks, requests=requests)

    def test_of_a_hundred_thousand_blocks(self) -> None:
        value = wire.encode_snapshot(self.large_snapshot(100_000))
        size = {name: len(json.dumps(each)) for name, each in value["blocks"].items()}
        assert size["refs"] < 200 and size["filled"] < 200  # two runs
        assert size["owner"] < 140_000  # a byte a block
        assert sum(size.values()) < 300_000

    def test_bytes_are_little_endian(self) -> None:
        column = codec(np.ndarray).write(np.array([1, 300, -2], np.int64))
        assert (column["dtype"], column["as"]) == ("int64", "int16")
        assert base64.b64decode(column["data"]) == b"\x01\x00\x2c\x01\xfe\xff"
