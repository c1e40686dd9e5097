"""The decoding settings as fields with labels and hints."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from engine.api.errors import BadParams, EngineError
from engine.api.params import SPECULATION, Grammar, SamplingParams
from engine.api.places import expanded
from minichat.chats.rows import changes_between
from minichat.session.strategies import BESIDE, Covered, Strategies
from minichat.settings.presets import OWN
from minichat.shell.paths import read_file

PLAIN = SamplingParams()
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "|": "|", "\\": "\\", "s": " "}  # in stop texts, after a \
_ESCAPES = {letter: f"\\{name}" for name, letter in _ESCAPED.items() if name != "s"}


def _always(_: SamplingParams) -> bool:
    return True


def _draws(params: SamplingParams) -> bool:
    return params.beams == 1 and not params.greedy


def _searches(params: SamplingParams) -> bool:
    return params.beams > 1


def _several(params: SamplingParams) -> bool:
    """Greedy replies are all the same, so the field is hidden; a value that is set stays visible."""
    return params.n > 1 or params.beams > 1 or not params.greedy


def _follows(params: SamplingParams) -> bool:
    """One hypothesis at a time."""
    return params.beams == 1


def _guesses(params: SamplingParams) -> bool:
    return bool(params.speculate)


@dataclass(frozen=True, slots=True)
class Knob:
    """One field of the drawer."""

    field: str
    label: str
    hint: str
    step: float = 0.0  # what an arrow key adds; 0: typing only
    whole: bool = False
    low: float = 0.0
    high: float = 1.0
    off: float | None = None  # the value that means "not used"
    start: float = 0.0  # where an arrow key starts if the field is unused
    used: Callable[[SamplingParams], bool] = _always  # whether it has an effect now
    choices: tuple[tuple[Any, str], ...] = ()  # values with their labels


KNOBS = (
    Knob("beams", "width", "hypotheses kept", 1, whole=True, low=2, high=64, used=_searches),
    Knob("length_penalty", "len penalty", "above 0 favors long replies", 0.1, low=-2, high=4, used=_searches),
    Knob(
        "early_stopping",
        "early stop",
        "yes: stop once enough have ended",
        choices=((False, "by estimate"), (True, "yes"), ("never", "never")),
        used=_searches,
    ),
    Knob("temperature", "temperature", "higher is more random", 0.05, high=2.0, used=_draws),
    Knob("top_k", "top-k", "only the K likeliest", 1, whole=True, high=1000, off=0, start=40, used=_draws),
    Knob(
        "top_p", "top-p", "likeliest tokens that sum to P", 0.01, low=0.01, off=1.0, start=0.95, used=_draws
    ),
    Knob("min_p", "min-p", "at least P of the likeliest token", 0.01, off=0.0, start=0.05, used=_draws),
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
    Knob("presence_penalty", "presence", "once per token in the reply", 0.1, low=-2, high=2, off=0.0),
    Knob("frequency_penalty", "frequency", "per occurrence in the reply", 0.1, low=-2, high=2, off=0.0),
    Knob("seed", "seed", "same seed, same reply", 1, whole=True, high=2**31, start=0, used=_draws),
    Knob(
        "max_tokens",
        "max tokens",
        "none: as many as fit; 0: no reply",
        64,
        whole=True,
        low=1,
        high=10**6,
        start=512,
    ),
    Knob("stop", "stop at", r"texts, separated by |; \| is a bar, \s a blank, \n a new line"),
    Knob("n", "replies", "the others become forks", 1, whole=True, low=1, high=8, used=_several),
    Knob("grammar", "grammar", "Enter: JSON schema file or /regex/", used=_follows),
    Knob(
        "speculate",
        "speculation",
        "often faster, same reply",
        choices=(("", "off"), *((kind, kind) for kind in SPECULATION)),
        used=_follows,
    ),
    Knob(
        "draft_tokens",
        "drafts",
        "per step; none: adaptive",
        1,
        whole=True,
        high=16,
        off=0,
        used=_guesses,
    ),
)


def strategy(
    params: SamplingParams, adapter: str = "", replies: int | None = None, *, new: SamplingParams = PLAIN
) -> str:
    """All decoding settings that change the tokens, in a few words, for headers.

    `replies`: how many a running request has, whatever the next one will have. `new`: the settings of a
    new chat. Where its replies end is not named.
    """
    words = _search(params) if params.beams > 1 else ["greedy"] if params.greedy else _filters(params)
    words += _weights(params) + _ends(params, new)
    if (replies or params.n) > 1:
        words.append(f"x{replies or params.n}")
    if params.best_of is not None:
        words.append(f"best of {params.best_of}")
    if params.grammar is not None:
        words.append(params.grammar.kind)
    if params.speculate:
        words.append(f"+{params.speculate}")
    if adapter:
        words.append(f"adapter {adapter}")
    return " ".join(words)


@dataclass(slots=True)
class ReplyLabel:
    """How a reply was sampled, in words: its first token, its newest one, and how often that changed."""

    first: str = ""
    last: str = ""
    changes: int = 0

    def note(self, words: str, *, begun: bool) -> None:
        """The reply is sampled so from now on. `begun`: it has tokens."""
        if not begun:
            self.first, self.changes = words, 0
        elif words != self.last:
            self.changes += 1
        self.last = words

    def __str__(self) -> str:
        if not self.changes:
            return self.last
        return f"{self.first}, {f'{self.changes} changes, ' if self.changes > 1 else ''}then {self.last}"


def _search(params: SamplingParams) -> list[str]:
    words = [f"beams {params.beams}"]
    if params.length_penalty != PLAIN.length_penalty:
        words.append(f"length {params.length_penalty:g}")
    if params.early_stopping:
        words.append("early stop" if params.early_stopping is True else "early stop never")
    return words


def _filters(params: SamplingParams) -> list[str]:
    words = [f"T {params.temperature:g}"]
    if params.top_k:
        words.append(f"top-k {params.top_k}")
    if params.top_p < 1:
        words.append(f"top-p {params.top_p:g}")
    if params.min_p:
        words.append(f"min-p {params.min_p:g}")
    if params.seed is not None:
        words.append(f"seed {params.seed}")
    return words


def _weights(params: SamplingParams) -> list[str]:
    """What makes tokens likelier, less likely or impossible, whatever the strategy; a grammar does, too."""
    words = [
        f"{name} {value:g}"
        for name, value, neutral in (
            ("rep", params.repetition_penalty, PLAIN.repetition_penalty),
            ("pres", params.presence_penalty, PLAIN.presence_penalty),
            ("freq", params.frequency_penalty, PLAIN.frequency_penalty),
            ("bias", len(params.logit_bias), 0),
            ("banned", len(params.bad_words), 0),
        )
        if value != neutral
    ]
    if params.min_tokens:
        words.append(f"min {params.min_tokens}")
    if params.allowed_token_ids is not None:
        words.append(f"only {len(params.allowed_token_ids)} tok")
    if params.ignore_eos:
        words.append("no eos")
    return words


def _ends(params: SamplingParams, new: SamplingParams) -> list[str]:
    """What ends a reply, unless it also ends those of a new chat."""
    words = []
    if params.max_tokens != new.max_tokens:
        words.append("no max" if params.max_tokens is None else f"max {params.max_tokens}")
    if params.stop != new.stop:
        words.append(f"stops {len(params.stop)}" if params.stop else "no stops")
    if params.stop_ids != new.stop_ids:
        words.append(f"stop ids {len(params.stop_ids)}" if params.stop_ids else "no stop ids")
    return words


def changed_from_default(params: SamplingParams) -> dict[str, Any]:
    """The fields that differ from the engine's defaults."""
    return changes_between(PLAIN, params)


def in_words(error: EngineError) -> str:
    """The error, with the name that the drawer gives its field."""
    if not isinstance(error, BadParams):
        return str(error)
    label = next((knob.label for knob in KNOBS if knob.field == error.field), error.field)
    return f"{label}: {error.problem}"


def shown(knob: Knob, params: SamplingParams) -> str:
    """A field's displayed value; empty if it is not used."""
    value = getattr(params, knob.field)
    if knob.choices:
        return next(name for each, name in knob.choices if each == value and type(each) is type(value))
    if knob.field == "grammar":
        return "" if value is None else f"{value.kind} {' '.join(value.text.split())}"
    if knob.field == "stop":
        return "|".join(map(_written, value))
    if value is None or value == knob.off:
        return ""
    return f"{value:.15g}" if isinstance(value, float) else str(value)  # as it was typed


def _written(stop: str) -> str:
    """A stop text as it is typed. Blanks at its ends are escaped, so that they are visible."""
    text = "".join(_ESCAPES.get(letter, letter) for letter in stop)
    return re.sub(r"^ +| +$", lambda blanks: r"\s" * len(blanks[0]), text)


def parsed(knob: Knob, text: str) -> Any:
    """Parse a typed value; empty means "not used". Raises BadParams."""
    if knob.field == "stop":
        found = re.findall(r"(?:\\.|[^|])+", text)
        return tuple(re.sub(r"\\([nrts|\\])", lambda each: _ESCAPED[each[1]], stop) for stop in found)
    text = text.strip()
    if text in ("", "-"):
        return knob.off if knob.off is not None else getattr(PLAIN, knob.field)
    try:
        return int(text) if knob.whole else float(text)
    except ValueError:
        expected = "a whole number" if knob.whole else "a number"
        raise BadParams(knob.field, f"must be {expected}, got {text!r}") from None


def stepped(knob: Knob, params: SamplingParams, steps: int) -> Any:
    """The value moved by some steps, within its range."""
    value = getattr(params, knob.field)
    if knob.choices:
        values = [each for each, _ in knob.choices]
        place = next(at for at, (_, name) in enumerate(knob.choices) if name == shown(knob, params))
        return values[(place + steps) % len(values)]
    if value is None or (value == knob.off and knob.start != value):
        return int(knob.start) if knob.whole else knob.start
    moved = min(max(value + steps * knob.step, knob.low), knob.high)
    return int(moved) if knob.whole else round(moved, 4)


def grammar_of(answer: str) -> Grammar | None:
    """Parse a grammar: a /regex/, or the file of a JSON schema; empty means none.

    Raises BadParams.
    """
    answer = answer.strip()
    if not answer:
        return None
    if len(answer) > 1 and answer[0] == answer[-1] == "/" and not os.path.isfile(answer):
        grammar = Grammar("regex", answer[1:-1])
    else:
        grammar = Grammar("json", _schema(answer))
    from engine.grammar.source import check  # a first frame needs no grammars

    check(grammar)
    return grammar


def _schema(file: str) -> str:
    try:
        return read_file(expanded(file))
    except OSError as error:
        why = error.strerror or str(error)
        raise BadParams(
            "grammar", f"cannot read {file}: {why}. A regex is written between slashes: /[a-z]+/"
        ) from None
    except UnicodeDecodeError:
        raise BadParams("grammar", f"cannot read {file}: not UTF-8 text") from None


@dataclass(frozen=True, slots=True)
class Preset:
    """Named decoding settings. Unset fields get the engine's defaults; seed, stops and length are kept."""

    name: str
    values: tuple[tuple[str, Any], ...]

    def apply(self, params: SamplingParams) -> SamplingParams:
        """Apply the preset. Raises BadParams if it conflicts with the chat's own fields."""
        values = dict(self.values)
        unfit = BESIDE if values.get("beams", 1) > 1 else ()
        own = {name: getattr(params, name) for name in _CHATS_OWN if name not in unfit}
        return PLAIN.changed(**{**own, **values})

    @classmethod
    def of(cls, name: str, params: SamplingParams) -> Preset:
        return cls(name, tuple(changed_from_default(params).items()))

    @classmethod
    def own(cls, params: SamplingParams, name: str = OWN) -> Preset:
        """The unsaved settings as a preset."""
        kept = {name: value for name, value in changed_from_default(params).items() if name not in _CHATS_OWN}
        return cls(name, tuple(kept.items()))


_CHATS_OWN = (
    "seed",
    "stop",
    "stop_ids",
    "logit_bias",
    "min_tokens",
    "max_tokens",
    "logprobs",
    "ignore_eos",
    "grammar",
)


def chats_own(
    params: SamplingParams, preset: Preset | None, strategies: Strategies, default: SamplingParams
) -> SamplingParams:
    """The chat's own values, where a preset may omit them. `preset`: the one that the parameters match.

    A value that this preset gave is not the chat's own, unless the user has changed it since.
    """
    own, covered = {name: getattr(params, name) for name in _CHATS_OWN}, strategies.covered
    if preset is None:
        covered = {}
    elif covered is None:
        before = strategies.own or default
        covered = {name: (getattr(before, name), value) for name, value in preset.values if name in own}
    return PLAIN.changed(
        **own | {name: mine for name, (mine, given) in covered.items() if own[name] == given}
    )


def covered_by(params: SamplingParams, own: SamplingParams) -> Covered:
    """The chat's own values that these parameters of a preset replace."""
    pairs = {name: (getattr(own, name), getattr(params, name)) for name in _CHATS_OWN}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def preset_of(params: SamplingParams, presets: Sequence[Preset]) -> Preset | None:
    """The preset that matches the parameters, if any; of several the one that sets most of the chat's own."""

    def same(preset: Preset) -> bool:
        try:
            return preset.apply(params) == params
        except BadParams:
            return False

    def covers(preset: Preset) -> int:
        return sum(name in _CHATS_OWN for name, _ in preset.values)

    return max(filter(same, presets), key=covers, default=None)
