"""Converts typed values to JSON and back, using the fields of their types; new fields need no code here.

Reading is strict: a value of the wrong type is rejected with its path. Unknown fields are ignored, and a
missing field takes its default, if it has one.
"""

import base64
import binascii
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import numpy as np

MAX_COLUMN = 2**26  # values; limits what a few run lengths can expand to
_RUN = 4  # runs are used if their average length is at least this
_INTEGERS = tuple(np.dtype(name) for name in ("int8", "int16", "int32", "int64"))
_ODD_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}  # no JSON literals for these


class DecodeError(Exception):
    """A JSON value does not fit its type. `place` collects the path as the error propagates."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.place: list[str] = []

    @property
    def field(self) -> str:
        return ".".join(reversed(self.place))

    def __str__(self) -> str:
        return f"{self.field} {self.problem}" if self.place else self.problem


class Codec(NamedTuple):
    """The two directions of a type's conversion."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


_USUAL: Mapping[str, Codec] = {}
_SAME_NAMES: Mapping[str, str] = {}


def _as_is(value: Any) -> Any:
    """Return a value that is JSON already."""
    return value


@cache
def codec(kind: Any) -> Codec:
    """The codec of a type. Raises TypeError if there is none."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if origin is Literal:
        return Codec(_as_is, _choice(arguments))
    if origin in (Union, UnionType) and len(arguments) == 2 and NoneType in arguments:
        return _optional(codec(next(each for each in arguments if each is not NoneType)))
    if origin is tuple and len(arguments) == 2 and arguments[1] is ...:
        return _many(codec(arguments[0]), arguments[0] if arguments[0] in (int, str, bool) else None)
    if origin is tuple:
        return _row([codec(each) for each in arguments])
    if origin is dict and arguments[0] is str:
        return _table(codec(arguments[1]))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum(kind)
    if isinstance(kind, type) and (is_dataclass(kind) or hasattr(kind, "_fields")):
        return record(kind)
    raise TypeError(f"{kind} has no JSON form; add one in engine/api/codec.py")


def record(
    kind: type,
    *,
    sparse: bool = False,
    forms: Mapping[str, Codec] = _USUAL,
    wire_names: Mapping[str, str] = _SAME_NAMES,
) -> Codec:
    """A codec for a dataclass or named tuple, as an object. `sparse` omits fields with default values.

    `forms`: codecs of fields whose form does not follow from their types. `wire_names`: by field, for those
    that have another name in JSON.
    """
    defaults = _defaults(kind)
    parts = {
        name: (wire_names.get(name, name), forms[name] if name in forms else codec(each))
        for name, each in field_types(kind).items()
    }
    writers = [(name, key, part.write, defaults.get(name, MISSING)) for name, (key, part) in parts.items()]

    def write(value: Any) -> dict[str, Any]:
        written = {}
        for name, key, writer, default in writers:
            each = getattr(value, name)
            if not sparse or default is MISSING or each != default:
                written[key] = each if writer is _as_is else writer(each)
        return written

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _mismatch("an object", value)
        known, key = {}, ""
        try:
            for name, (key, part) in parts.items():
                if key in value:
                    known[name] = part.read(value[key])
                elif name not in defaults:
                    raise DecodeError("is missing")
        except DecodeError as error:
            error.place.append(key)
            raise
        return kind(**known)

    return Codec(write, read)


def field_types(kind: Any) -> dict[str, Any]:
    """The fields of a dataclass or named tuple with their types, in order."""
    types = get_type_hints(kind)
    names = kind._fields if hasattr(kind, "_fields") else [each.name for each in fields(kind)]
    return {name: types[name] for name in names}


def _defaults(kind: Any) -> dict[str, Any]:
    """The defaults of optional fields. A default factory is its own value, which equals no other."""
    if hasattr(kind, "_field_defaults"):
        return dict(kind._field_defaults)
    return {
        each.name: each.default if each.default is not MISSING else each.default_factory
        for each in fields(kind)
        if each.default is not MISSING or each.default_factory is not MISSING
    }


# Single values


def _mismatch(expected: str, value: Any) -> DecodeError:
    shown = repr(value)
    return DecodeError(f"must be {expected}, not {shown if len(shown) <= 60 else shown[:57] + '...'}")


def _exactly(kind: type, words: str) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise _mismatch(words, value)
        return value

    return read


def _write_float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _read_float(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is str and value in _ODD_FLOATS:
        return _ODD_FLOATS[value]
    if type(value) is int and abs(value) <= 2**1023:
        return float(value)
    raise _mismatch("a number", value)


def _write_bytes(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _read_bytes(value: Any) -> bytes:
    try:
        if type(value) is str:
            return base64.b64decode(value, validate=True)
    except binascii.Error:
        pass
    raise _mismatch("base64", value)


def _choice(allowed: tuple[Any, ...]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        for each in allowed:
            if type(value) is type(each) and value == each:
                return value
        raise _mismatch(f"one of {', '.join(map(str, allowed))}", value)

    return read


def _enum(kind: type[Enum]) -> Codec:
    values = {each.value: each for each in kind}
    check = _choice(tuple(values))
    return Codec(lambda value: value.value, lambda value: values[check(value)])


def _optional(inner: Codec) -> Codec:
    write, read = inner
    return Codec(
        _as_is if write is _as_is else lambda value: None if value is None else write(value),
        lambda value: None if value is None else read(value),
    )


# Several values


def _read_list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise _mismatch("a list", value)
    return value


def _many(inner: Codec, plain: type | None) -> Codec:
    """A codec for a list. `plain`: the element type, if checking types is enough, as for token ids."""
    write, read = inner

    def read_all(value: Any) -> tuple[Any, ...]:
        values = _read_list(value)
        if plain is not None and set(map(type, values)) <= {plain}:
            return tuple(values)
        return tuple([read(each) for each in values])

    return Codec(list if write is _as_is else lambda values: [write(each) for each in values], read_all)


def _row(parts: list[Codec]) -> Codec:
    def write(row: tuple[Any, ...]) -> list[Any]:
        return [part.write(each) for part, each in zip(parts, row, strict=True)]

    def read(value: Any) -> tuple[Any, ...]:
        if len(_read_list(value)) != len(parts):
            raise _mismatch(f"a list of {len(parts)}", value)
        return tuple([part.read(each) for part, each in zip(parts, value, strict=True)])

    return Codec(write, read)


def _table(inner: Codec) -> Codec:
    write, read = inner

    def read_table(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _mismatch("an object", value)
        return {name: read(each) for name, each in value.items()}

    return Codec(
        dict if write is _as_is else lambda t: {name: write(each) for name, each in t.items()}, read_table
    )


# Columns: integers in the narrowest type that holds them, run-length encoded if neighbors are mostly equal


def _write_column(column: np.ndarray) -> dict[str, Any]:
    if column.ndim != 1 or column.dtype.kind not in "biuf":
        raise TypeError(f"a column must be a row of numbers, not {column.dtype} of shape {column.shape}")
    written: dict[str, Any] = {"dtype": column.dtype.name}
    if column.dtype.kind != "f" and len(column) > 1:
        starts = np.flatnonzero(column[1:] != column[:-1]) + 1
        if (len(starts) + 1) * _RUN <= len(column):
            starts = np.concatenate(([0], starts))
            written["runs"] = _write_column(np.diff(starts, append=len(column)))
            column = column[starts]
    narrow = _narrow(column)
    return written | {"as": narrow.dtype.name, "data": _write_bytes(narrow.tobytes())}


def _narrow(column: np.ndarray) -> np.ndarray:
    """The column in its smallest type, little-endian."""
    best = column.dtype
    if column.dtype.kind != "f" and len(column):
        low, high = int(column.min()), int(column.max())
        best = next((each for each in _INTEGERS if _holds(each, low, high)), best)
    elif column.dtype.kind == "b":
        best = _INTEGERS[0]
    return column.astype(best.newbyteorder("<"), copy=False)


def _holds(kind: np.dtype, low: int, high: int) -> bool:
    info = np.iinfo(kind)
    return int(info.min) <= low and high <= int(info.max)


def _read_column(value: Any) -> np.ndarray:
    if type(value) is not dict or not {"dtype", "as", "data"} <= value.keys():
        raise _mismatch("a column (an object with dtype, as and data)", value)
    data, stored = _read_bytes(value["data"]), _dtype(value["as"])
    if len(data) % stored.itemsize:
        raise DecodeError(f"has {len(data)} bytes, which is not a whole number of {stored.name} values")
    column = np.frombuffer(data, stored.newbyteorder("<")).astype(_dtype(value["dtype"]))
    if "runs" in value:
        lengths = _read_column(value["runs"])
        if lengths.dtype.kind != "i" or len(lengths) != len(column) or (lengths < 1).any():
            raise DecodeError("has runs that do not fit its data")
        if int(lengths.max(initial=0)) > MAX_COLUMN or int(lengths.sum()) > MAX_COLUMN:
            raise DecodeError(f"has more than {MAX_COLUMN} values")
        column = np.repeat(column, lengths)
    column.setflags(write=False)
    return column


def _dtype(name: Any) -> np.dtype:
    if type(name) is str and name in _DTYPES:
        return _DTYPES[name]
    raise DecodeError(f"has the unknown dtype {name!r}")


_DTYPES = {
    name: np.dtype(name)
    for name in "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64".split()
}
_PLAIN: dict[Any, Codec] = {
    bool: Codec(_as_is, _exactly(bool, "true or false")),
    int: Codec(_as_is, _exactly(int, "a whole number")),
    str: Codec(_as_is, _exactly(str, "a string")),
    float: Codec(_write_float, _read_float),
    bytes: Codec(_write_bytes, _read_bytes),
    NoneType: Codec(_as_is, _exactly(NoneType, "null")),
    np.ndarray: Codec(_write_column, _read_column),
}
