"""Every setting: what it may be, what it is by itself, and what it means. docs/settings.md says the same."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.api.config import KV_SCHEMES
from engine.api.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Rule:
    """What a value has to be, in words and as a test."""

    wanted: str
    accepts: Callable[[Any], bool]
    choices: tuple[str, ...] = ()
    meaning: str = ""


def setting(default: Any, rule: Rule, meaning: str) -> Any:
    return field(default=default, metadata={"rule": Rule(rule.wanted, rule.accepts, rule.choices, meaning)})


def whole(low: int, high: int) -> Rule:
    return Rule(
        f"a whole number from {low} to {high}", lambda value: type(value) is int and low <= value <= high
    )


def number(low: float, high: float) -> Rule:
    return Rule(
        f"a number from {low:g} to {high:g}",
        lambda value: type(value) in (int, float) and low <= value <= high,
    )


def one_of(*choices: str) -> Rule:
    return Rule(f"one of {', '.join(choices)}", lambda value: value in choices, choices)


TEXT = Rule("a text", lambda value: isinstance(value, str))
NAME = Rule("a text that is not empty", lambda value: isinstance(value, str) and value != "")
TEXTS = Rule(
    "a list of texts that are not empty",
    lambda value: isinstance(value, list | tuple) and all(isinstance(each, str) and each for each in value),
)
FLAG = Rule("true or false", lambda value: isinstance(value, bool))


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    theme: str = setting(
        "minichat-dark", NAME, "The theme: a shipped one, or one of yours in the themes folder."
    )
    ascii: bool = setting(False, FLAG, "Draw with ASCII characters only.")
    mouse: bool = setting(True, FLAG, "Take the mouse; Ctrl+G frees it for a moment.")
    monitor: bool = setting(True, FLAG, "Open the monitor at the start where the terminal is wide enough.")
    map_colour: str = setting(
        "owner",
        one_of("owner", "age", "references", "fill"),
        "What the colours of the block map say at first.",
    )
    map_order: str = setting(
        "physical", one_of("physical", "session"), "How the block map is laid out at first."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSettings:
    transcript: float = setting(10, number(1, 30), "Updates a second of a streaming reply.")
    monitor: float = setting(4, number(0.5, 10), "Updates a second of the monitor.")
    ssh_transcript: float = setting(5, number(1, 30), "The same for replies when you come over SSH.")
    ssh_monitor: float = setting(4, number(0.5, 10), "The same for the monitor when you come over SSH.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings:
    system: str = setting("", TEXT, "The system prompt of a new chat.")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    model: str = setting("pocket", NAME, "A folder, a hub name, or pocket, the built-in model.")
    folders: Sequence[str] = setting((), TEXTS, "Where the model picker looks for models of yours.")
    device: str = setting("auto", NAME, "auto, cpu, cuda, cuda:1 ...")
    dtype: str = setting(
        "auto", one_of("auto", "float32", "bfloat16", "float16"), "The weights' type; auto: the checkpoint's."
    )
    attention: str = setting("auto", NAME, "The attention back end; `minichat doctor` lists them.")
    policy: str = setting("fcfs", NAME, "Who goes first in the engine's line; `minichat doctor` lists them.")
    runs_in: str = setting(
        "thread",
        one_of("thread", "process"),
        "Where the engine runs: a thread of this program, or a process of its own.",
    )
    blocks: int | None = setting(
        None, whole(1, 2**31 - 1), "Blocks of the KV cache; without it, as many as fit into free memory."
    )
    max_context: int | None = setting(
        None, whole(1, 2**31 - 1), "The most tokens of one request; without it, the model's limit."
    )
    quantization: str = setting(
        "none", NAME, "How weights are kept: int8, int4 ...; `minichat doctor` lists them."
    )
    kv: str = setting("none", one_of(*KV_SCHEMES), "How the cache keeps keys and values.")
    kv_window: int | None = setting(
        None, whole(16, 2**31 - 1), "See so many tokens back and the first few only; without it, all of them."
    )
    kv_sinks: int = setting(4, whole(0, 2**31 - 1), "With a window, how many of the first tokens.")


SAMPLING = SamplingParams(temperature=0.7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings, checked. Without a file they are these."""

    screen: Screen = Screen()
    rates: RateSettings = RateSettings()
    chat: ChatSettings = ChatSettings()
    engine: EngineSettings = EngineSettings()
    sampling: SamplingParams = SAMPLING
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # ids of bindings and the keys they get
