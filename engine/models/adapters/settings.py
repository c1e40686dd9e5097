"""Reads an adapter_config.json as PEFT does. What is not supported is refused by its name."""

import math
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.api.errors import BadCheckpoint
from engine.models.fields import MOST_LAYERS, MOST_WIDTH, Fields

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
ALL_LINEAR = "all-linear"
_MOST_BYTES = 2**20  # of the file; PEFT writes about 1 KB
_MOST_PATTERN = 4096  # characters of a regular expression
MATCHING = 1.0  # seconds for all regular expressions of a file

# Fields that determine nothing about a trained adapter's products.
_IGNORED = frozenset(
    {
        "auto_mapping", "base_model_name_or_path", "ensure_weight_tying", "eva_config", "inference_mode",
        "lora_dropout", "lora_ga_config", "loftq_config", "corda_config", "megatron_core", "peft_version",
        "qalora_group_size", "revision",
    }
)  # fmt: skip
_READ = frozenset(
    {
        "alpha_pattern", "bias", "exclude_modules", "init_lora_weights", "layers_to_transform", "lora_alpha",
        "peft_type", "r", "rank_pattern", "target_modules", "task_type", "use_rslora",
    }
)  # fmt: skip
# Other ways to initialize also change the base weights, so they do not fit ours.
_STARTS = (None, True, False, "gaussian", "eva", "orthogonal")


@dataclass(slots=True)
class _Patterns:
    """Matches regular expressions from a file, which may be built to take forever."""

    file: Path
    left: float  # seconds

    def match(self, pattern: str, name: str) -> bool:
        import regex  # type: ignore[import-untyped]  # here, since it takes a tenth of a second

        began = time.monotonic()
        try:
            if len(pattern) > _MOST_PATTERN:
                raise BadCheckpoint(f"{self.file}: a pattern has {len(pattern)} characters, too many")
            re.compile(pattern)  # PEFT's own dialect
            return regex.fullmatch(pattern, name, timeout=max(self.left, 1e-3)) is not None
        except TimeoutError:
            raise BadCheckpoint(
                f"{self.file}: the pattern {pattern[:80]!r} takes too long to match"
            ) from None
        except (re.error, regex.error, RecursionError, OverflowError) as error:
            raise BadCheckpoint(f"{self.file}: {pattern[:80]!r} is not a valid pattern: {error}") from None
        finally:
            self.left -= time.monotonic() - began


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """Which products an adapter adds to, with which rank and scale."""

    rank: int
    alpha: float
    by_root: bool  # rsLoRA: the scale is alpha / sqrt(rank)
    targets: str | tuple[str, ...]
    excluded: str | tuple[str, ...]
    layers: tuple[int, ...]  # empty: all
    ranks: Mapping[str, int]  # by pattern of a module's name
    alphas: Mapping[str, float]
    patterns: _Patterns

    def targeted(self, module: str, layer: int) -> bool:
        if self._named(self.excluded, module):
            return False
        if self.targets == ALL_LINEAR or isinstance(self.targets, str):
            return self.targets == ALL_LINEAR or self.patterns.match(self.targets, module)
        return self._named(self.targets, module) and (not self.layers or layer in self.layers)

    def rank_of(self, module: str) -> int:
        key = self._key(self.ranks, module)
        return self.rank if key is None else self.ranks[key]

    def scale_of(self, module: str) -> float:
        rank, key = self.rank_of(module), self._key(self.alphas, module)
        alpha = self.alpha if key is None else self.alphas[key]
        return alpha / (math.sqrt(rank) if self.by_root else rank)

    def _named(self, wanted: str | tuple[str, ...], module: str) -> bool:
        if isinstance(wanted, str):
            return self.patterns.match(wanted, module)
        return any(module == each or module.endswith(f".{each}") for each in wanted)

    def _key(self, keys: Iterable[str], module: str) -> str | None:
        return next((key for key in keys if self.patterns.match(rf"(.*\.)?({key})", module)), None)


def read_settings(folder: Path) -> LoraSettings:
    """Read and check a folder's adapter_config.json."""
    file = folder / CONFIG
    if not file.is_file():
        raise BadCheckpoint(f"{folder} holds no {CONFIG}, so it is not an adapter in PEFT's format")
    if file.stat().st_size > _MOST_BYTES:
        raise BadCheckpoint(f"{file} has {file.stat().st_size} bytes, too many for a configuration")
    fields = Fields.read(file)
    _refuse(fields)
    ranks, alphas = fields.inside("rank_pattern"), fields.inside("alpha_pattern")
    return LoraSettings(
        rank=fields.whole("r", 8, high=MOST_WIDTH),
        alpha=fields.real("lora_alpha", 8.0),
        by_root=fields.flag("use_rslora", False),
        targets=_names(fields, "target_modules"),
        excluded=_names(fields, "exclude_modules", needed=False),
        layers=_layers(fields),
        ranks={key: ranks.whole(key, high=MOST_WIDTH) for key in ranks.values},
        alphas={key: alphas.real(key) for key in alphas.values},
        patterns=_Patterns(file, MATCHING),
    )


def _refuse(fields: Fields) -> None:
    """Refuse what this engine does not compute. Unknown fields are refused if they are set to anything."""
    if (kind := fields.text("peft_type")) != "LORA":
        raise fields.unsupported("peft_type", f"only LoRA adapters are supported, not {kind[:40]}")
    if fields.get("task_type") not in (None, "CAUSAL_LM"):
        raise fields.unsupported("task_type", "only adapters of causal language models are supported")
    if fields.text("bias", "none") != "none":
        raise fields.unsupported("bias", "adapters with biases are not supported")
    if fields.get("init_lora_weights") not in _STARTS:
        why = "this initialization changes the base weights; convert the adapter to plain LoRA with PEFT"
        raise fields.unsupported("init_lora_weights", why)
    for key, value in fields.values.items():
        if value and key not in _READ | _IGNORED:
            raise fields.unsupported(key, "this part of PEFT is not supported")


def _names(fields: Fields, key: str, *, needed: bool = True) -> str | tuple[str, ...]:
    value = fields.get(key)
    if isinstance(value, str) and value:
        return value
    named = isinstance(value, list) and all(isinstance(each, str) and each for each in value)
    if not (named and value) and (needed or value):
        raise fields.bad(key, "must be a list of module names, or a pattern")
    return tuple(value or ())


def _layers(fields: Fields) -> tuple[int, ...]:
    value = fields.get("layers_to_transform")
    listed = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(each) is int and 0 <= each < MOST_LAYERS for each in listed):
        raise fields.bad("layers_to_transform", "must be a list of layer numbers")
    return tuple(listed)
