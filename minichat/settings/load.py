"""Read config.toml. Errors are reported with their line, and the default is used instead."""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from engine.api.config import EngineConfig
from engine.api.errors import BadInput
from minichat.settings.nearest import unknown
from minichat.settings.sampling import read_params
from minichat.settings.schema import ChatSettings, EngineSettings, RateSettings, Rule, Screen, Settings
from minichat.settings.toml import lines_of, literal

SECTIONS = ("screen", "rates", "chat", "engine", "sampling", "keys")

T = TypeVar("T", Screen, RateSettings, ChatSettings, EngineSettings)


@dataclass(frozen=True, slots=True)
class Problem:
    """An error in a user's file, with how to fix it."""

    file: Path
    line: int  # 0: the whole file
    key: str
    says: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else f"{self.file}"
        return f"{place}: {self.key}: {self.says}" if self.key else f"{place}: {self.says}"


@dataclass
class TomlDocument:
    """A TOML file: its tables, the lines of its keys, and its problems."""

    file: Path
    tables: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def report(self, key: str, says: str) -> None:
        """Record a problem with a dotted key; a key inside a value has the line of that value."""
        place = key
        while place and place not in self.lines:
            place, _, _ = place.rpartition(".")
        self.problems.append(Problem(self.file, self.lines.get(place, 0), key, says))


@dataclass(frozen=True, slots=True)
class Loaded:
    """The valid settings, and the problems in the file."""

    settings: Settings
    document: TomlDocument

    @property
    def problems(self) -> list[Problem]:
        return self.document.problems


def load(file: Path) -> Loaded:
    """Load the settings; defaults replace missing and invalid values."""
    document = read(file)
    tables = {name: _table(document, name) for name in SECTIONS}
    for name in document.tables.keys() - set(SECTIONS):
        document.report(name, unknown(name, SECTIONS))
    settings = Settings(
        screen=_section(document, Screen, "screen", tables["screen"]),
        rates=_section(document, RateSettings, "rates", tables["rates"]),
        chat=_section(document, ChatSettings, "chat", tables["chat"]),
        engine=_usable(document, _section(document, EngineSettings, "engine", tables["engine"])),
        sampling=read_params(tables["sampling"], Settings().sampling, _reporter(document, "sampling")),
        keys=_keys(document, tables["keys"]),
    )
    document.problems.sort(key=lambda problem: problem.line)
    return Loaded(settings, document)


def read(file: Path) -> TomlDocument:
    """The tables of the file; empty if it is missing or not valid TOML."""
    try:
        text = file.read_text(encoding="utf-8")
        return TomlDocument(file, *_parsed(text))
    except FileNotFoundError:
        return TomlDocument(file)
    except UnicodeDecodeError as error:
        says, line = "this is not UTF-8 text", error.object[: error.start].count(b"\n") + 1
    except OSError as error:
        says, line = f"cannot read the file: {error.strerror}", 0
    except tomllib.TOMLDecodeError as error:
        place = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", str(error))
        says = str(error)[: place.start()] if place else str(error)
        line = int(place[1]) if place and place[1] else text.count("\n") + 1
    return TomlDocument(file, problems=[Problem(file, line, "", says)])


@lru_cache(maxsize=64)  # all themes are read again whenever one is edited
def _parsed(text: str) -> tuple[Mapping[str, Any], Mapping[str, int]]:
    """The tables of the text, and the line of each key."""
    lines = {".".join(path): line for path, line in lines_of(text).items()}
    return tomllib.loads(text), lines


def _table(document: TomlDocument, name: str) -> dict[str, Any]:
    table = document.tables.get(name, {})
    if isinstance(table, dict):
        return table
    document.report(name, f"must be a table: write [{name}] above its settings")
    return {}


def _section(document: TomlDocument, kind: type[T], section: str, table: Mapping[str, Any]) -> T:
    rules: dict[str, Rule] = {each.name: each.metadata["rule"] for each in fields(kind)}
    good = {}
    for name, value in table.items():
        if name not in rules:
            document.report(f"{section}.{name}", unknown(name, rules))
        elif not rules[name].accepts(value):
            document.report(f"{section}.{name}", f"must be {rules[name].expected}, got {literal(value)}")
        else:
            good[name] = value
    return kind(**good)


def _usable(document: TomlDocument, engine: EngineSettings) -> EngineSettings:
    """Report values that the engine would refuse, such as a budget beside a window, and use the default."""
    for _ in fields(engine):
        place = None if engine.kv_disk in ("auto", "off") or engine.kv_budget else engine.kv_disk
        try:
            EngineConfig(
                model=engine.model,
                tp=engine.tp,
                pp=engine.pp,
                kv_host=engine.kv_host,
                kv_disk=place,
                kv_window=engine.kv_window,
                kv_budget=engine.kv_budget,
                kv_sinks=engine.kv_sinks,
            )
        except BadInput as error:  # it begins with the field
            name, _, says = str(error).partition(" ")
            document.report(f"engine.{name}", says)
            engine = replace(engine, **{name: getattr(EngineSettings(), name)})
        else:
            break
    return engine


def _keys(document: TomlDocument, table: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    good = {}
    for name, value in _flat(table):
        keys = value if isinstance(value, list) else [value]
        if keys and all(isinstance(key, str) and key for key in keys):
            good[name] = tuple(keys)
        else:
            expected = 'a key like "ctrl+n", or a list of keys'
            document.report(f"keys.{name}", f"must be {expected}, got {literal(value)}")
    return good


def _flat(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Flatten nested tables: the dots in unquoted binding ids create them."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _reporter(document: TomlDocument, section: str) -> Callable[[str, str], None]:
    return lambda name, says: document.report(f"{section}.{name}", says)
