"""Every setting: allowed values, default and meaning. docs/settings.md repeats them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.api.cache_spec import KV_SCHEMES
from engine.api.config import EVICTIONS
from engine.api.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Rule:
    """The allowed values of a setting, in words and as a test."""

    expected: str
    accepts: Callable[[Any], bool]
    choices: tuple[str, ...] = ()
    meaning: str = ""


def setting(default: Any, rule: Rule, meaning: str) -> Any:
    return field(default=default, metadata={"rule": Rule(rule.expected, rule.accepts, rule.choices, meaning)})


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
NAME = Rule("a nonempty text", lambda value: isinstance(value, str) and value != "")
TEXTS = Rule(
    "a list of nonempty texts",
    lambda value: isinstance(value, list | tuple) and all(isinstance(each, str) and each for each in value),
)
FLAG = Rule("true or false", lambda value: isinstance(value, bool))


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    theme: str = setting("minichat-dark", NAME, "The theme: a built-in one, or one in your themes folder.")
    ascii: bool = setting(False, FLAG, "Use ASCII characters only.")
    mouse: bool = setting(True, FLAG, "Capture the mouse; Ctrl+G toggles it.")
    monitor: bool = setting(True, FLAG, "Open the monitor at startup if the terminal is wide enough.")
    map_colour: str = setting(
        "owner",
        one_of("owner", "age", "references", "fill", "tier"),
        "What the colors of the block map show at startup.",
    )
    map_order: str = setting("physical", one_of("physical", "session"), "Order of the block map at startup.")


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSettings:
    transcript: float = setting(10, number(1, 30), "Updates per second of a streaming reply.")
    monitor: float = setting(4, number(0.5, 10), "Updates per second of the monitor.")
    ssh_transcript: float = setting(5, number(1, 30), "Updates per second of a streaming reply over SSH.")
    ssh_monitor: float = setting(4, number(0.5, 10), "Updates per second of the monitor over SSH.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings:
    system: str = setting("", TEXT, "The system prompt of a new chat.")
    deadline_ms: float | None = setting(
        None,
        number(0, 86_400_000),
        "Milliseconds until the first token of a reply is due; has an effect with the policy `latency`.",
    )

    @property
    def deadline(self) -> float | None:
        """The same in seconds."""
        return None if self.deadline_ms is None else self.deadline_ms / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    model: str = setting("pocket", NAME, "A folder, a GGUF file, a hub name, or pocket, the built-in model.")
    folders: Sequence[str] = setting((), TEXTS, "Folders in which the model picker looks for models.")
    device: str = setting("auto", NAME, "auto, cpu, cuda, cuda:1 ...")
    tp: int = setting(
        1,
        whole(1, 1024),
        "Processes that share the model (tensor parallel), each with a part of all weights.",
    )
    pp: int = setting(
        1,
        whole(1, 1024),
        "Stages of a pipeline, each with some of the layers, in `tp` processes of its own.",
    )
    dtype: str = setting(
        "auto",
        one_of("auto", "float32", "bfloat16", "float16"),
        "Data type of the weights; auto: that of the checkpoint.",
    )
    attention: str = setting("auto", NAME, "The attention backend; `minichat doctor` lists them.")
    policy: str = setting("fcfs", NAME, "The scheduling policy; `minichat doctor` lists them.")
    runs_in: str = setting(
        "thread",
        one_of("thread", "process"),
        "Where the engine runs: in a thread of this program or in its own process.",
    )
    blocks: int | None = setting(
        None,
        whole(1, 2**31 - 1),
        "Blocks of the KV cache; if unset, as many as fit in free memory, on a CPU at most for 32 full "
        "contexts.",
    )
    kv_host: float | None = setting(
        None,
        number(0, 1e6),
        "GB of main memory for cache blocks that the device has no room for; if unset, as much as the cache "
        "on a GPU, at most 2.1 and a quarter of the free memory, and 0 on a CPU.",
    )
    kv_disk: str = setting(
        "auto",
        NAME,
        "Where chats keep their cache blocks, so that they resume after a restart: DIR:GB, off, or auto: in "
        "the cache folder, 2 GB or a tenth of what is free. For `minichat` itself; `up` has `--kv-disk`.",
    )
    max_context: int | None = setting(
        None, whole(1, 2**31 - 1), "Maximum tokens of one request; if unset, the model's limit."
    )
    quantization: str = setting(
        "none", NAME, "Scheme of the weights: int8, int4 ...; `minichat doctor` lists them."
    )
    kv: str = setting("none", one_of(*KV_SCHEMES), "Scheme of the KV cache.")
    kv_window: int | None = setting(
        None, whole(16, 2**31 - 1), "Attend only to this many recent tokens and the first few; if unset, all."
    )
    kv_budget: int | None = setting(
        None,
        whole(64, 2**31 - 1),
        "Maximum tokens of a request to keep in the cache: 64 or more, and room for `kv_sinks` in blocks of "
        "16; if unset, all.",
    )
    kv_eviction: str = setting(
        "norms", one_of(*EVICTIONS), "How a budget chooses what to evict: by key norms or by attention."
    )
    kv_sinks: int = setting(
        4, whole(0, 2**31 - 1), "Number of first tokens to keep with a window or a budget."
    )


SAMPLING = SamplingParams(temperature=0.7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings, validated. The defaults apply without a file."""

    screen: Screen = Screen()
    rates: RateSettings = RateSettings()
    chat: ChatSettings = ChatSettings()
    engine: EngineSettings = EngineSettings()
    sampling: SamplingParams = SAMPLING
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # keys by binding id
