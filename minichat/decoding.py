"""How replies are drawn, in a person's words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import BadParams
from engine.params import FIELDS, SamplingParams

PLAIN = SamplingParams()


@dataclass(frozen=True, slots=True)
class Knob:
    """One field as the drawer shows it."""

    field: str
    label: str
    hint: str
    step: float = 0.0  # what an arrow key adds; 0: it can only be typed
    whole: bool = False
    low: float = 0.0
    high: float = 1.0
    off: float | None = None  # the value that means "not used"
    start: float = 0.0  # where an arrow key begins when the field is not used
    sampling: bool = False  # a greedy reply does not use it


KNOBS = (
    Knob("temperature", "temperature", "higher is wilder", 0.05, high=2.0, sampling=True),
    Knob("top_k", "top-k", "the K likeliest", 1, whole=True, high=1000, off=0, start=40, sampling=True),
    Knob("top_p", "top-p", "the likeliest that sum to P", 0.01, low=0.01, off=1.0, start=0.95, sampling=True),
    Knob("min_p", "min-p", "at least P of the likeliest", 0.01, off=0.0, start=0.05, sampling=True),
    Knob(
        "repetition_penalty",
        "repetition",
        "over prompt and reply",
        0.05,
        low=0.05,
        high=2,
        off=1.0,
        start=1.0,
    ),
    Knob("presence_penalty", "presence", "once for what was said", 0.1, low=-2, high=2, off=0.0),
    Knob("frequency_penalty", "frequency", "each time it was said", 0.1, low=-2, high=2, off=0.0),
    Knob("seed", "seed", "same seed, same reply", 1, whole=True, high=2**31, start=0, sampling=True),
    Knob("max_tokens", "max tokens", "none: as many as fit", 64, whole=True, low=1, high=10**6, start=512),
    Knob("stop", "stop at", "texts, with | between"),
)


def strategy(params: SamplingParams) -> str:
    """The decoding in a few words, as headers show it."""
    if params.greedy:
        return "greedy"
    words = [f"T {params.temperature:g}"]
    if params.top_k:
        words.append(f"top-k {params.top_k}")
    if params.top_p < 1:
        words.append(f"top-p {params.top_p:g}")
    if params.min_p:
        words.append(f"min-p {params.min_p:g}")
    return " ".join(words)


def changed_from_default(params: SamplingParams) -> dict[str, Any]:
    """The fields that are not as the engine has them by itself."""
    return {name: value for name in FIELDS if (value := getattr(params, name)) != getattr(PLAIN, name)}


def shown(knob: Knob, params: SamplingParams) -> str:
    """A field's value as a person reads it; nothing where it is not used."""
    value = getattr(params, knob.field)
    if knob.field == "stop":
        return "|".join(stop.replace("\n", "\\n") for stop in value)
    if value is None or value == knob.off:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)


def parsed(knob: Knob, text: str) -> Any:
    """What a person typed, as the field takes it; nothing means "not used". Raises BadParams."""
    text = text.strip()
    if knob.field == "stop":
        return tuple(stop.replace("\\n", "\n") for stop in text.split("|") if stop)
    if text in ("", "-"):
        return knob.off if knob.off is not None else getattr(PLAIN, knob.field)
    try:
        return int(text) if knob.whole else float(text)
    except ValueError:
        wanted = "a whole number" if knob.whole else "a number"
        raise BadParams(knob.field, f"must be {wanted}, not {text!r}") from None


def nudged(knob: Knob, params: SamplingParams, steps: int) -> Any:
    """The value one or more steps further, within its range."""
    value = getattr(params, knob.field)
    if value is None or (value == knob.off and knob.start != value):
        return int(knob.start) if knob.whole else knob.start
    moved = min(max(value + steps * knob.step, knob.low), knob.high)
    return int(moved) if knob.whole else round(moved, 4)


@dataclass(frozen=True, slots=True)
class Preset:
    """Decoding under a name. What it does not say is the engine's; seed, stops and length stay the chat's."""

    name: str
    values: tuple[tuple[str, Any], ...]

    def apply(self, params: SamplingParams) -> SamplingParams:
        own = {name: getattr(params, name) for name in _CHATS_OWN}
        return PLAIN.changed(**{**own, **dict(self.values)})

    @classmethod
    def of(cls, name: str, params: SamplingParams) -> Preset:
        return cls(name, tuple(changed_from_default(params).items()))


_CHATS_OWN = (
    "seed",
    "stop",
    "stop_ids",
    "logit_bias",
    "min_tokens",
    "max_tokens",
    "logprobs",
    "ignore_eos",
)


def preset_of(params: SamplingParams, presets: Sequence[Preset]) -> Preset | None:
    """The preset that the parameters are, if they are one."""
    return next((preset for preset in presets if preset.apply(params) == params), None)
