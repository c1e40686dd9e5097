"""The model families of the native decoder: each a short table of parts and names. Needs no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points

from engine.api.errors import BadInput
from engine.api.plugins import missing_members
from engine.models.kinds import (
    Dense,
    Grouped,
    PartKind,
    one_window,
    unrotated,
    windows_by_layer,
    windows_where_unrotated,
)

GROUP = "minichat.families"  # entry points of packages that provide a family

# The names that parts use, and their names in checkpoints.
NAMES: Mapping[str, str] = {
    "embed": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "block": "model.layers.{}",
    "attention.norm": "input_layernorm",
    "attention.q": "self_attn.q_proj",
    "attention.k": "self_attn.k_proj",
    "attention.v": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
    "feed_forward.norm": "post_attention_layernorm",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The parts of a family's blocks, and its defaults for config.json."""

    attention: PartKind
    feed_forward: PartKind
    names: Mapping[str, str] = field(default_factory=lambda: NAMES)
    norm: str = ""  # a custom operator (layers/operators.py) instead of RMS norm
    product: str = ""  # a custom operator instead of the plain product
    theta: float = 10_000.0
    tied: bool = False
    start_id: int | None = None
    stop_id: int | None = None


FAMILIES: dict[str, Family] = {
    "llama": Family(
        attention=Grouped(biased=True), feed_forward=Dense(biased=True), start_id=1, stop_id=2
    ),
    "mistral": Family(
        attention=Grouped(windows=one_window), feed_forward=Dense(), start_id=1, stop_id=2
    ),
    "qwen2": Family(
        attention=Grouped(windows=windows_by_layer, qkv_bias=True), feed_forward=Dense()
    ),
    "qwen3": Family(
        attention=Grouped(windows=windows_by_layer, biased=True, qk_norm=True, head_dim=128),
        feed_forward=Dense(),
    ),
    "smollm3": Family(
        attention=Grouped(windows=windows_where_unrotated, unrotated=unrotated, biased=True),
        feed_forward=Dense(biased=True), theta=2_000_000.0, tied=True, start_id=128_000, stop_id=128_001,
    ),
}  # fmt: skip


def register(name: str, family: Family) -> None:
    """Add the family of a model_type. Installed packages can use an entry point instead."""
    if (problem := missing_members(family, "attention", "feed_forward", "names")) is not None:
        raise BadInput(f"model family {name!r}: {problem}")
    FAMILIES[name] = family


def named(name: str) -> Family | None:
    """Return the family of a model_type. None: there is none, so transformers runs the model.

    Raises if the family's package cannot be used.
    """
    for point in entry_points(group=GROUP, name=name) if name not in FAMILIES else ():
        try:
            found = point.load()
        except (ImportError, AttributeError) as error:
            raise BadInput(f"model family {name!r}: it cannot be imported ({error})") from error
        register(name, found)
    return FAMILIES.get(name)


def names() -> list[str]:
    """Return all families, built-in ones first."""
    return list(dict.fromkeys((*FAMILIES, *sorted(point.name for point in entry_points(group=GROUP)))))
