"""What an engine is made with, and what a model is made of. Plain values, no tensors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from engine.api.errors import BadInput

BLOCK_SIZES = (16, 32, 64, 128, 256)

DTypeName = Literal["auto", "float32", "bfloat16", "float16"]
PreemptionName = Literal["auto", "recompute", "swap"]
KvSchemeName = Literal["none", "int8", "fp8"]
KV_SCHEMES: tuple[KvSchemeName, ...] = get_args(KvSchemeName)

_CHOICES: dict[str, tuple[str | int, ...]] = {
    "dtype": get_args(DTypeName),
    "preemption": get_args(PreemptionName),
    "kv_scheme": KV_SCHEMES,
    "block_size": BLOCK_SIZES,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The choices made when an engine starts; a sensible one stands where nothing is said."""

    model: str
    dtype: DTypeName = "auto"  # auto: the checkpoint's
    quantization: str = "none"  # the scheme in which weights are kept; none: the checkpoint's own
    device: str = "auto"
    threads: int | None = None  # on a CPU; None: all cores, and one for a small model
    dummy_weights: bool = False  # random weights of the model's shape
    attention: str = "auto"
    policy: str = "fcfs"
    block_size: int = 16  # tokens; a back end for attention that is asked for may read another size alone
    blocks: int | None = None  # None: from the memory that is free
    host_blocks: int | None = None  # room for swapped requests; None: as many as blocks, within host memory
    kv_scheme: KvSchemeName = "none"  # how the cache keeps keys and values; none: as the model computes them
    kv_window: int | None = None  # a token sees so many before it, and the first few; None: all of them
    kv_sinks: int = 4  # with a window, the first tokens that all see
    max_context: int | None = None  # None: the model's
    max_running: int = 256  # rows in one step
    max_step_tokens: int | None = None  # the token budget of one step; None: 8192 on a GPU, 512 on a CPU
    max_waiting: int = 100_000
    prefix_cache: bool = True
    chunked_prefill: bool = True
    preemption: PreemptionName = "auto"
    depth: Literal[0, 1] | None = None  # steps launched ahead of the one committed; None: 1 on a GPU
    seed: int | None = None  # of the seeds drawn for requests that bring none
    draft: str | None = None  # a small model that drafts; None: the model's folder `draft`, if there
    exit_layer: int | None = None  # after which early exits draft; None: the first the model was trained for

    def __post_init__(self) -> None:
        """Values come from files, flags and other processes, so their types are looked at, too."""
        for name in ("model", "quantization", "device", "attention", "policy"):
            self._need(name, "a name", isinstance(getattr(self, name), str))
        self._need("draft", "a name", self.draft is None or isinstance(self.draft, str))
        for name in ("dummy_weights", "prefix_cache", "chunked_prefill"):
            self._need(name, "True or False", isinstance(getattr(self, name), bool))
        for name, choices in _CHOICES.items():
            *most, last = map(str, choices)
            self._need(name, f"{', '.join(most)} or {last}", _is_one_of(getattr(self, name), choices))
        self._need("depth", "0 or 1", self.depth is None or _is_one_of(self.depth, (0, 1)))
        for name, least in ("max_running", 1), ("max_waiting", 1), ("kv_sinks", 0):
            self._need_whole(name, least)
        for name in ("threads", "max_step_tokens", "blocks", "max_context", "exit_layer"):
            self._need_whole(name, 1, optional=True)
        self._need_whole("host_blocks", 0, optional=True)
        self._need_whole("kv_window", self.block_size, optional=True)
        self._need("seed", "a whole number", self.seed is None or _is_whole(self.seed))

    def _need_whole(self, name: str, least: int, *, optional: bool = False) -> None:
        value = getattr(self, name)
        fits = (value is None and optional) or (_is_whole(value) and value >= least)
        self._need(name, "a whole number" + (" above 0" if least == 1 else f", {least} or more"), fits)

    def _need(self, name: str, what: str, fits: bool) -> None:
        if not fits:
            raise BadInput(f"{name} must be {what}, not {getattr(self, name)!r}")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_one_of(value: object, choices: tuple[str | int, ...]) -> bool:
    """Also by its type: 1.0 and True equal 1."""
    return value in choices and (isinstance(value, str) or _is_whole(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSpec:
    """What a layer keeps between steps and attention must know of it; the cache sizes its tensors by it."""

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    window: int | None = None  # a token sees itself and the window - 1 before it
    kept: int = 0  # and, with a window, the first so many of its request
    softcap: float | None = None  # scores pass through cap * tanh(score / cap)
    sinks: bool = False  # a learned score a head stands beside the keys; KVLayer.sinks holds them


LayerSpec = CacheSpec  # its older name


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary positions: the plain base, and how long contexts are scaled into it."""

    theta: float
    kind: Literal["default", "linear", "llama3", "yarn"] = "default"
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float = 1.0  # yarn: multiplies cos and sin
    truncate: bool = True  # yarn: whether the correction range is rounded to whole dimensions


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """What the engine relies on, of any model."""

    family: str  # the checkpoint's model_type
    dtype: str  # the checkpoint's, as torch names it: float32, bfloat16, float16
    hidden: int
    layers: tuple[CacheSpec, ...]
    vocab: int
    max_context: int
    start_id: int | None = None
    stop_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig(ModelConfig):
    """A model that the native decoder runs, in the engine's own words."""

    mlp: int  # the width inside a feed-forward
    norm_eps: float
    rope: RopeSpec
    tied: bool
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    unrotated: tuple[int, ...] = ()  # layers without rotary positions
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)  # that a family's own parts read
    exits: tuple[int, ...] = ()  # layers after which it was trained to leave, through the last norm and head


@dataclass(frozen=True, slots=True)
class ModelPlace:
    """Where a model's files lie, and what a person calls it."""

    name: str
    folder: Path
