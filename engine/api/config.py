"""The configuration of an engine and the shape of a model. Plain values, no tensors."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from engine.api.cache_spec import KV_SCHEMES, CacheSpec, KvSchemeName
from engine.api.errors import BadInput
from engine.api.places import AdapterPlace, DiskRoom, ExchangePlace, MeetingPlace

BLOCK_SIZES = (16, 32, 64, 128, 256)

DTypeName = Literal["auto", "float32", "bfloat16", "float16"]
PreemptionName = Literal["auto", "recompute", "swap"]
EvictionName = Literal["norms", "attention"]
EVICTIONS: tuple[EvictionName, ...] = get_args(EvictionName)

_CHOICES: dict[str, tuple[str | int, ...]] = {
    "dtype": get_args(DTypeName),
    "preemption": get_args(PreemptionName),
    "kv_scheme": KV_SCHEMES,
    "kv_eviction": EVICTIONS,
    "block_size": BLOCK_SIZES,
}


OWN_HEAD = "mtp"  # as `draft`: the head for multi-token prediction in the model's own checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The options of an engine, with sensible defaults."""

    model: str
    dtype: DTypeName = "auto"  # auto: the checkpoint's
    quantization: str = "none"  # the scheme of the weights; none: the checkpoint's own
    device: str = "auto"
    tp: int = 1  # ranks that share the model, each a process with a part of every weight
    pp: int = 1  # stages of a pipeline, each with some of the layers, and a process for each of `tp` ranks
    meet: str | None = None  # HOST:PORT:FILE, where the other ranks connect; None: they run on this machine
    threads: int | None = None  # on a CPU; None: all cores, and one for a small model
    dummy_weights: bool = False  # random weights of the model's shape
    attention: str = "auto"
    policy: str = "fcfs"
    latency_target: float = 1.0  # of the policy latency: seconds to a first token without a deadline
    max_slowdown: float | None = None  # of a step by prompts beside its decodes; None: any
    block_size: int = 16  # tokens; an attention backend chosen by name may support only another size
    blocks: int | None = None  # None: computed from free memory
    kv_host: float | None = None  # GB of host memory for blocks; None: up to 2 GiB on a GPU, else 0
    host_blocks: int | None = None  # the same as a number of blocks
    kv_disk: str | None = None  # DIR:GB, where blocks are kept after their requests; None: nowhere
    exchange: str | None = None  # PATH:SEGMENTS:OWN:GPUS, memory to send blocks through; None: none are sent
    kv_scheme: KvSchemeName = "none"  # how the cache stores keys and values; none: as computed
    kv_window: int | None = None  # how many tokens back a token sees, plus the first few; None: all
    kv_budget: int | None = None  # how many tokens a request keeps in the cache; None: all
    kv_eviction: EvictionName = "norms"  # with a budget: how the blocks to evict are chosen
    kv_sinks: int = 4  # with a window or a budget: the first tokens, which all tokens see
    max_context: int | None = None  # None: the model's
    max_running: int = 256  # rows in one step
    max_step_tokens: int | None = None  # token budget of a step; None: by the device and the model's size
    max_waiting: int = 100_000
    prefix_cache: bool = True
    chunked_prefill: bool = True
    preemption: PreemptionName = "auto"
    depth: Literal[0, 1] | None = None  # steps launched ahead of the last committed one; None: 1 on a GPU
    seed: int | None = None  # generates the seeds of requests without one
    # A draft model, Medusa or EAGLE-3 heads, or OWN_HEAD. None: the folder `draft` of the model, if any.
    draft: str | None = None
    exit_layer: int | None = None  # the layer after which early exits draft; None: the first trained one
    adapters: tuple[str, ...] = ()  # LoRA adapters to load at the start, as NAME=PATH
    first_request: int = 0  # the number of the first request
    warm: bool = False  # on a GPU, run steps of every kind before the first request

    @property
    def ranks(self) -> int:
        """The processes that share the model."""
        return self.tp * self.pp

    def __post_init__(self) -> None:
        """Check values and their types, because they come from files, flags and other processes."""
        self._check_names()
        self._check_choices()
        self._check_numbers()
        self._check_combinations()

    def _check_names(self) -> None:
        for name in ("model", "quantization", "device", "attention", "policy"):
            self._need(name, "a name", isinstance(getattr(self, name), str))
        for name, form, parse in (
            ("kv_disk", "DIR:GB", DiskRoom.parse),
            ("exchange", "PATH:SEGMENTS:OWN:GPUS", ExchangePlace.parse),
            ("meet", "HOST:PORT:FILE", MeetingPlace.parse),
        ):
            if (value := getattr(self, name)) is not None:
                self._need(name, form, isinstance(value, str))
                parse(value)
        found: object = self.adapters
        listed = isinstance(found, tuple) and all(isinstance(each, str) for each in found)
        self._need("adapters", "a tuple of NAME=PATH", listed)
        for each in self.adapters:
            AdapterPlace.parse(each)
        self._need("draft", "a name", self.draft is None or isinstance(self.draft, str))

    def _check_choices(self) -> None:
        for name in ("dummy_weights", "prefix_cache", "chunked_prefill", "warm"):
            self._need(name, "True or False", isinstance(getattr(self, name), bool))
        for name, choices in _CHOICES.items():
            *most, last = map(str, choices)
            self._need(name, f"{', '.join(most)} or {last}", _is_one_of(getattr(self, name), choices))
        self._need("depth", "0 or 1", self.depth is None or _is_one_of(self.depth, (0, 1)))

    def _check_numbers(self) -> None:
        self._need("latency_target", "seconds, 0 or more", is_amount(self.latency_target))
        slowdown = self.max_slowdown
        self._need("max_slowdown", "a factor of 1 or more", slowdown is None or is_factor(slowdown))
        self._need("kv_host", "gigabytes, 0 or more", self.kv_host is None or is_amount(self.kv_host))
        for name, least in ("max_running", 1), ("max_waiting", 1), ("kv_sinks", 0):
            self._need_whole(name, least)
        for name in ("threads", "max_step_tokens", "blocks", "max_context", "exit_layer"):
            self._need_whole(name, 1, optional=True)
        self._need_whole("host_blocks", 0, optional=True)
        self._need_whole("first_request", 0)
        self._need_whole("tp", 1)
        self._need_whole("pp", 1)
        self._need_whole("kv_window", self.block_size, optional=True)
        self._need_whole("kv_budget", self.least_budget, optional=True)
        self._need("seed", "a whole number", self.seed is None or _is_whole(self.seed))

    def _check_combinations(self) -> None:
        if None not in (self.kv_host, self.host_blocks):
            raise BadInput("kv_host and host_blocks cannot be used together")
        for other in ("kv_window", "kv_disk", "kv_host", "host_blocks"):
            if self.kv_budget is not None and getattr(self, other):
                raise BadInput(f"kv_budget cannot be used with {other}; choose one of the two")
        for other in ("kv_window", "kv_budget"):
            if self.exchange is not None and getattr(self, other):
                raise BadInput(f"{other} cannot be used where blocks are exchanged: a prefix is not complete")
        for other in ("kv_budget", "adapters", "exchange"):
            if self.ranks > 1 and getattr(self, other):
                name = "pp" if self.pp > 1 else "tp"
                raise BadInput(f"{other} cannot be used with {name} yet; run on one rank")
        if self.meet is not None and self.ranks == 1:
            raise BadInput("meet needs tp or pp above 1")
        if self.drafts_itself and self.ranks > 1:
            raise BadInput(f"draft: {OWN_HEAD} runs in one process only; leave tp and pp at 1")
        if self.drafts_itself and self.forgets:
            raise BadInput(f"draft: {OWN_HEAD} cannot be used with kv_window or kv_budget")
        if self.pp > 1 and self.exit_layer is not None:
            raise BadInput(
                "exit_layer cannot be used with pp: the first layers and the head are on two stages"
            )

    @property
    def least_budget(self) -> int:
        """The fewest tokens that a kv_budget may have."""
        return (4 + -(-self.kv_sinks // self.block_size)) * self.block_size

    @property
    def drafts_itself(self) -> bool:
        """Whether the head for multi-token prediction in the model's own checkpoint drafts."""
        return self.draft == OWN_HEAD

    @property
    def forgets(self) -> bool:
        """Whether tokens leave the cache of a running request."""
        return self.kv_window is not None or self.kv_budget is not None

    def _need_whole(self, name: str, least: int, *, optional: bool = False) -> None:
        value = getattr(self, name)
        fits = (value is None and optional) or (_is_whole(value) and value >= least)
        self._need(name, "a whole number" + (" above 0" if least == 1 else f", {least} or more"), fits)

    def _need(self, name: str, what: str, fits: bool) -> None:
        if not fits:
            raise BadInput(f"{name} must be {what}, not {getattr(self, name)!r}")


def is_amount(value: object) -> bool:
    """Whether a value is a finite number, 0 or more."""
    return type(value) in (int, float) and 0 <= value < math.inf  # type: ignore[operator]


def is_factor(value: object) -> bool:
    """Whether a value is a finite number, 1 or more."""
    return is_amount(value) and value >= 1  # type: ignore[operator]


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_one_of(value: object, choices: tuple[str | int, ...]) -> bool:
    """Whether a value is one of the choices, including its type: 1.0 and True equal 1."""
    return value in choices and (isinstance(value, str) or _is_whole(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary positions: the base and the scaling for long contexts."""

    theta: float
    kind: Literal["default", "linear", "llama3", "yarn", "longrope"] = "default"
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float = 1.0  # yarn and longrope: multiplies cos and sin
    truncate: bool = True  # yarn: whether the correction range is rounded to whole dimensions
    short_factors: tuple[float, ...] = ()  # longrope: divide the frequencies up to the original context
    long_factors: tuple[float, ...] = ()  # longrope: in a model loaded with a longer context
    share: float = 1.0  # of a head's numbers, from the first; the others are not rotated
    interleaved: bool = False  # pairs are neighbors, not numbers of the two halves


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsSpec:
    """A mixture of experts: a router chooses some feed-forwards for each token."""

    count: int
    chosen: int  # by each token
    width: int  # of each expert
    normalized: bool = False  # whether the weights of the chosen ones are scaled to a sum of 1
    shared: int = 0  # the width of an expert that all tokens use; 0: none
    groups: int = 1  # a token chooses from some groups of experts
    chosen_groups: int = 1
    scaling: float = 1.0  # multiplies the weights of the chosen ones


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentSpec:
    """The sizes of an attention that makes each head's keys and values from a latent per token."""

    rank: int  # of the latent
    rotated: int  # numbers of a key that positions rotate, which all heads share
    unrotated: int  # numbers of a head's key that are made from the latent
    value: int  # numbers of a head's value
    query_rank: int = 0  # of the latent that queries are made from; 0: they are made directly


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """What the engine needs to know about any model."""

    family: str  # the checkpoint's model_type
    dtype: str  # the checkpoint's, as torch names it: float32, bfloat16, float16
    hidden: int
    layers: tuple[CacheSpec, ...]
    vocab: int
    max_context: int
    start_id: int | None = None
    stop_ids: tuple[int, ...] = ()
    usual_context: int | None = None  # used unless another one is requested; None: max_context

    @property
    def rotary_dim(self) -> int:
        """How many numbers of a key positions may rotate, in the layers that have keys; 0: none has."""
        return next((each.rotary_dim for each in self.layers if each.has_keys), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig(ModelConfig):
    """The configuration of a model that the native decoder runs."""

    mlp: int  # hidden width of the feed-forward layer
    norm_eps: float
    rope: RopeSpec
    tied: bool
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    unrotated: tuple[int, ...] = ()  # layers without rotary positions
    local: tuple[int, ...] = ()  # sliding layers, which use `local_rope` if there is one
    local_rope: RopeSpec | None = None
    activation: str = "silu"  # of the feed-forward
    experts: ExpertsSpec | None = None
    latent: LatentSpec | None = None
    dense: tuple[int, ...] = ()  # layers with the family's dense feed-forward instead of experts
    embed_scale: float = 1.0
    residual_scale: float = 1.0  # multiplies each part's term
    logit_scale: float = 1.0
    logit_cap: float | None = None  # logits pass through cap * tanh(logit / cap)
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)  # read by the family's own parts
    exits: tuple[int, ...] = ()  # layers trained for early exit, through the last norm and head
    extra_layers: int = 0  # layers in the checkpoint after these that predict further tokens
    before: int = 0  # layers that earlier stages of a pipeline have
    after: int = 0  # layers that later stages have

    def stage(self, number: int, stages: int) -> "DecoderConfig":
        """Return the configuration of one stage of a pipeline: its layers, which count from 0.

        The first stage also embeds, and the last one also samples. So if the layers cannot be split evenly,
        stages in the middle have one more.
        """
        count = len(self.layers)
        if stages > count:
            raise BadInput(f"pp: the model has {count} layers, so it can have at most {count} stages")
        fewest, more = divmod(count, stages)
        middle = sorted(range(stages), key=lambda each: -min(each, stages - 1 - each))[:more]
        sizes = [fewest + (each in middle) for each in range(stages)]
        first, size = sum(sizes[:number]), sizes[number]

        def own(layers: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(each - first for each in layers if first <= each < first + size)

        return replace(
            self,
            layers=self.layers[first : first + size],
            unrotated=own(self.unrotated),
            local=own(self.local),
            dense=own(self.dense),
            exits=(),
            before=first,
            after=count - first - size,
        )


@dataclass(frozen=True, slots=True)
class ModelPlace:
    """A model's folder, or its GGUF file, and the name that users see."""

    name: str
    folder: Path
