"""Where the families of the native decoder differ: one short reader each. Needs no torch."""

from collections.abc import Callable
from dataclasses import dataclass

from engine.models.fields import MOST_LAYERS, MOST_TOKENS, Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """Where one family differs from another, and what it takes for granted."""

    windows: tuple[int | None, ...]  # one a layer
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    unrotated: tuple[int, ...] = ()
    head_dim: int | None = None
    theta: float = 10_000.0
    tied: bool = False
    start_id: int | None = None
    stop_id: int | None = None


Reader = Callable[[Fields, int], Traits]
FAMILIES: dict[str, Reader] = {}


def family(name: str) -> Callable[[Reader], Reader]:
    """Registers the reader of a model_type that the native decoder can run."""

    def register(reader: Reader) -> Reader:
        FAMILIES[name] = reader
        return reader

    return register


@family("llama")
def llama(fields: Fields, layers: int) -> Traits:
    bias = fields.flag("attention_bias", False)
    return Traits(
        windows=(None,) * layers,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=fields.flag("mlp_bias", False),
        start_id=1,
        stop_id=2,
    )


@family("mistral")
def mistral(fields: Fields, layers: int) -> Traits:
    window = _window(fields) if fields.get("sliding_window") or not fields.given("sliding_window") else None
    return Traits(windows=(window,) * layers, start_id=1, stop_id=2)


@family("qwen2")
def qwen2(fields: Fields, layers: int) -> Traits:
    return Traits(windows=_mixed_windows(fields, layers), qkv_bias=True)


@family("qwen3")
def qwen3(fields: Fields, layers: int) -> Traits:
    bias = fields.flag("attention_bias", False)
    return Traits(
        windows=_mixed_windows(fields, layers), qkv_bias=bias, out_bias=bias, qk_norm=True, head_dim=128
    )


@family("smollm3")
def smollm3(fields: Fields, layers: int) -> Traits:
    bias = fields.flag("attention_bias", False)
    interval = fields.whole("no_rope_layer_interval", 4, high=MOST_LAYERS)
    rotated = fields.list("no_rope_layers", [int((i + 1) % interval != 0) for i in range(layers)])
    if len(rotated) < layers or any(mark not in (0, 1) for mark in rotated):
        raise fields.bad("no_rope_layers", f"must mark each of the {layers} layers with 1 (rotary) or 0")
    unrotated = tuple(i for i in range(layers) if not rotated[i])
    return Traits(
        windows=_mixed_windows(fields, layers, default=lambda i: i in unrotated),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=fields.flag("mlp_bias", False),
        unrotated=unrotated,
        theta=2_000_000.0,
        tied=True,
        start_id=128_000,
        stop_id=128_001,
    )


def _window(fields: Fields) -> int:
    return fields.whole("sliding_window", 4096, high=MOST_TOKENS)


def _mixed_windows(
    fields: Fields, layers: int, default: Callable[[int], bool] | None = None
) -> tuple[int | None, ...]:
    """Full and sliding layers side by side: by name, or by what `default` says of a layer's number."""
    if not fields.flag("use_sliding_window", False):
        return (None,) * layers
    window = _window(fields)
    if fields.get("layer_types") is None:
        first = fields.whole("max_window_layers", 28, low=0, high=MOST_TOKENS)
        slides = default or (lambda i: i >= first)
        return tuple(window if slides(i) else None for i in range(layers))
    kinds = fields.list("layer_types")
    if len(kinds) != layers:
        raise fields.bad("layer_types", f"must name {layers} layers, as num_hidden_layers says")
    if any(kind not in ("full_attention", "sliding_attention") for kind in kinds):
        raise fields.unsupported("layer_types", "only full_attention and sliding_attention can be run")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
