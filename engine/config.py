"""What an engine is made with, and what a model is made of. Plain values, no tensors."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, get_args

from engine.errors import BadInput

BLOCK_SIZES = (16, 32, 64, 128, 256)

DTypeName = Literal["auto", "float32", "bfloat16", "float16"]
PreemptionName = Literal["auto", "recompute", "swap"]
KvSchemeName = Literal["none", "int8", "fp8"]
KV_SCHEMES: tuple[KvSchemeName, ...] = get_args(KvSchemeName)


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
    block_size: int = (
        16  # tokens; an attention back end that is asked for by name may read another size alone
    )
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
        if not _is_whole(self.block_size) or self.block_size not in BLOCK_SIZES:
            raise BadInput(f"block_size must be one of {BLOCK_SIZES}, not {self.block_size!r}")
        if self.depth is not None and not (_is_whole(self.depth) and self.depth in (0, 1)):
            raise BadInput(f"depth must be 0 or 1, not {self.depth!r}")
        if self.preemption not in ("auto", "recompute", "swap"):
            raise BadInput(f"preemption must be auto, recompute or swap, not {self.preemption!r}")
        if self.dtype not in ("auto", "float32", "bfloat16", "float16"):
            raise BadInput(f"dtype must be auto, float32, bfloat16 or float16, not {self.dtype!r}")
        if self.kv_scheme not in KV_SCHEMES:
            raise BadInput(
                f"kv_scheme must be {', '.join(KV_SCHEMES[:-1])} or {KV_SCHEMES[-1]}, not {self.kv_scheme!r}"
            )
        for name in ("model", "quantization", "device", "attention", "policy"):
            if not isinstance(value := getattr(self, name), str):
                raise BadInput(f"{name} must be a name, not {value!r}")
        for name in ("dummy_weights", "prefix_cache", "chunked_prefill"):
            if not isinstance(value := getattr(self, name), bool):
                raise BadInput(f"{name} must be True or False, not {value!r}")
        if self.draft is not None and not isinstance(self.draft, str):
            raise BadInput(f"draft must be a name, not {self.draft!r}")
        optional = ("threads", "max_step_tokens", "blocks", "max_context", "exit_layer")
        for name in (
            "max_running",
            "max_waiting",
            *(each for each in optional if getattr(self, each) is not None),
        ):
            if not (_is_whole(value := getattr(self, name)) and value > 0):
                raise BadInput(f"{name} must be a whole number above 0, not {value!r}")
        least = self.block_size
        if self.kv_window is not None and not (_is_whole(self.kv_window) and self.kv_window >= least):
            raise BadInput(f"kv_window must be a whole number, {least} or more, not {self.kv_window!r}")
        if not (_is_whole(self.kv_sinks) and self.kv_sinks >= 0):
            raise BadInput(f"kv_sinks must be a whole number, 0 or more, not {self.kv_sinks!r}")
        if self.host_blocks is not None and not (_is_whole(self.host_blocks) and self.host_blocks >= 0):
            raise BadInput(f"host_blocks must be a whole number, 0 or more, not {self.host_blocks!r}")
        if self.seed is not None and not _is_whole(self.seed):
            raise BadInput(f"seed must be a whole number, not {self.seed!r}")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """What attention must know of a layer; the cache sizes its tensors by it."""

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    window: int | None = None  # a token sees itself and the window - 1 before it
    kept: int = 0  # and, with a window, the first so many of its request
    softcap: float | None = None  # scores pass through cap * tanh(score / cap)
    sinks: bool = False  # a learned score a head stands beside the keys; KVLayer.sinks holds them


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
    layers: tuple[LayerSpec, ...]
    vocab: int
    max_context: int
    start_id: int | None = None
    stop_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig(ModelConfig):
    """A model of the Llama family, in the engine's own words."""

    mlp: int
    norm_eps: float
    rope: RopeSpec
    tied: bool
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    unrotated: tuple[int, ...] = ()  # layers without rotary positions
    exits: tuple[int, ...] = ()  # layers after which it was trained to leave, through the last norm and head


@dataclass(frozen=True, slots=True)
class ModelPlace:
    """Where a model's files lie, and what a person calls it."""

    name: str
    folder: Path


FIELDS = tuple(field.name for field in fields(EngineConfig))
