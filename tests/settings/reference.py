"""The tables of docs/settings.md, generated from the code."""

from collections.abc import Iterator
from dataclasses import fields

from engine.api.errors import BadParams
from engine.api.params import FIELDS, SamplingParams
from minichat.features import BUILT_IN
from minichat.features.table import bound
from minichat.settings.sampling import MEANINGS
from minichat.settings.schema import SAMPLING, ChatSettings, EngineSettings, RateSettings, Screen
from minichat.settings.toml import literal

SECTIONS = {"screen": Screen, "rates": RateSettings, "chat": ChatSettings, "engine": EngineSettings}


def rows() -> Iterator[str]:
    for section, kind in SECTIONS.items():
        for each in fields(kind):
            rule = each.metadata["rule"]
            yield row(f"{section}.{each.name}", rule.expected, each.default, rule.meaning)
    for name in FIELDS:
        yield row(f"sampling.{name}", expected(name), getattr(SAMPLING, name), MEANINGS.get(name, "?"))


def key_rows() -> Iterator[str]:
    for each in bound(BUILT_IN):
        keys = " ".join(f"`{key}`" for key in each.keys) or "none"
        yield f"| `{each.id}` | {keys} | {each.title} |"


def row(key: str, expected: str, default: object, meaning: str) -> str:
    shown = "none" if default is None else f"`{literal(default)}`"
    return f"| `{key}` | {expected} | {shown} | {meaning} |"


def expected(name: str) -> str:
    """The values that a parameter accepts, as in the engine's error message."""
    try:
        SamplingParams().changed(**{name: object()})
    except BadParams as error:
        return str(error).removeprefix(f"{name}: must be ").partition(", not ")[0]
    raise AssertionError(f"{name} may be anything")
