"""Checks that a transformers model can run over the engine's cache.

`probe_without_weights` runs the model on the meta device, to refuse it early. `probe` runs one passage twice:
whole with the model's own attention, and in two chunks with ours. If the results agree, tokens depend on each
other only through keys and values.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from torch import Tensor

from engine import later
from engine.api.cache_spec import LayerSpec
from engine.api.config import ModelConfig
from engine.api.errors import UnsupportedModel
from engine.models.bridge.adapters import ADAPTERS
from engine.models.bridge.interface import BridgedModel, implementation_of
from engine.models.bridge.products import BridgedProducts
from engine.models.fields import Fields

PASSAGE, CUT = 12, 7  # length of the passage, and where the second chunk begins
UNREACHED = "not every layer calls transformers' attention interface, so the paged cache cannot serve it"

_NOT_PLAIN: tuple[type[Exception], ...] = (TypeError, ValueError, AttributeError, LookupError)


class ProbeRecorder:
    """Computes plain attention, stores keys and values, and records each layer's spec."""

    def __init__(self, theirs: Any, fields: Fields) -> None:
        text = theirs.get_text_config(decoder=True)
        self.fields = fields
        self.count: int = text.num_hidden_layers
        self.kinds: list[str] | None = getattr(text, "layer_types", None)
        self.window: int | None = getattr(text, "sliding_window", None)
        self.layers: dict[int, LayerSpec] = {}
        self.sinks: dict[int, Tensor] = {}
        self.calls: list[int] = []
        self.memory: dict[int, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        if unknown := set(self.kinds or ()) - {"full_attention", "sliding_attention"}:
            raise self.refusal(
                f"its {', '.join(sorted(unknown))} layers are not supported, "
                "only full_attention and sliding_attention"
            )

    def refusal(self, why: str) -> UnsupportedModel:
        return self.fields.unsupported("model_type", why)

    def visit(self, module: Any, q: Tensor, k: Tensor, v: Tensor, kwargs: dict[str, Any]) -> Tensor:
        index = getattr(module, "layer_idx", None)
        if not isinstance(index, int) or not getattr(module, "is_causal", True):
            raise self.refusal("its attention is not the causal one of a numbered layer")
        spec = self._spec(index, q, k, v, kwargs)
        if self.layers.setdefault(index, spec) != spec:
            raise self.refusal(f"layer {index} is not the same at every call")
        if (sinks := kwargs.get("s_aux")) is not None:
            self.sinks[index] = sinks
        self.calls.append(index)
        self.memory[index].append((k, v))
        keys, values = (torch.cat(parts) for parts in zip(*self.memory[index], strict=True))
        return attention(q, keys, values, spec, self.sinks.get(index))

    def _spec(self, index: int, q: Tensor, k: Tensor, v: Tensor, kwargs: dict[str, Any]) -> LayerSpec:
        window = kwargs.get("sliding_window")
        if self.kinds is not None and index < len(self.kinds):  # the masks of transformers follow these
            window = self.window if self.kinds[index] == "sliding_attention" else None
        scale = kwargs.get("scaling")
        return LayerSpec(
            heads=q.shape[1],
            kv_heads=k.shape[1],
            key_dim=q.shape[2],
            value_dim=v.shape[2],
            scale=q.shape[2] ** -0.5 if scale is None else float(scale),
            window=window,
            softcap=kwargs.get("softcap"),
            sinks=kwargs.get("s_aux") is not None,
        )

    def end_pass(self) -> None:
        if self.calls != list(range(self.count)):
            raise self.refusal(UNREACHED)
        self.calls.clear()


def attention(q: Tensor, k: Tensor, v: Tensor, spec: LayerSpec, sinks: Tensor | None) -> Tensor:
    """Attend from the last tokens of one row over the whole row, with the full score matrix."""
    group = spec.heads // spec.kv_heads
    scores = torch.einsum("qhd,khd->hqk", q.float(), k.float().repeat_interleave(group, 1)) * spec.scale
    if spec.softcap is not None:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    at = torch.arange(len(k), device=k.device)
    distance = at[len(k) - len(q) :, None] - at
    hidden = (distance < 0) | (distance >= (spec.window or len(k)))
    scores = scores.masked_fill(hidden, float("-inf"))
    if sinks is not None:
        scores = torch.cat((scores, sinks.float()[:, None, None].expand(-1, len(q), 1)), dim=-1)
    weights = scores.softmax(-1)[..., : len(k)]
    return torch.einsum("hqk,khd->qhd", weights, v.float().repeat_interleave(group, 1)).to(q.dtype)


@torch.inference_mode()
def probe_without_weights(theirs: Any, config: ModelConfig, fields: Fields) -> None:
    """Refuse a model whose layers do not call our attention, before any weight is read."""
    recorder = ProbeRecorder(theirs, fields)
    later.load()  # their operators may be any
    ids = torch.zeros(2, dtype=torch.int64, device="meta")
    model = None
    try:
        with _explained(recorder), torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(
                theirs, attn_implementation=implementation_of(theirs)
            )
            BridgedModel(model.eval(), config).walk(ids, ids, recorder.visit)
    except (RuntimeError, NotImplementedError) as error:  # its control flow may depend on values
        supported = getattr(model, "_supports_attention_backend", True)  # no model: building it failed
        supported = supported or theirs.model_type in ADAPTERS
        if not recorder.calls and not supported:
            raise recorder.refusal(f"{UNREACHED} ({error})") from error
    else:
        recorder.end_pass()


@torch.inference_mode()
def probe(bridged: BridgedModel, fields: Fields) -> Tensor:
    """Check the model with its own weights, and complete its config. Return the logits of the passage."""
    recorder = ProbeRecorder(bridged.model.config, fields)
    ids, positions = _passage(bridged)
    with _explained(recorder, (RuntimeError,)):
        reached, logits = _by_their_attention(bridged, ids)
        parts = []
        for part in (slice(0, CUT), slice(CUT, None)):
            if len(ids[part]):
                parts.append(bridged.walk(ids[part], positions[part], recorder.visit))
                recorder.end_pass()
        ours = torch.cat(parts)
        exact, own_logits = ours.dtype == torch.float32, bridged.logits(ours)
        if not (_agree(ours, reached, exact) and _agree(own_logits, logits, exact)):
            raise recorder.refusal("its results over the paged cache differ from those of transformers")
    layers = tuple(recorder.layers[index] for index in range(recorder.count))
    if recorder.kinds is None and recorder.window and any(spec.window is None for spec in layers):
        raise recorder.refusal(
            f"transformers' cache keeps {recorder.window} tokens, but its attention has no window, so its "
            "results depend on the use of the cache"
        )
    bridged.set_layers(layers, recorder.sinks, hidden=ours.shape[1])
    return own_logits


@torch.inference_mode()
def probe_products(
    bridged: BridgedModel, products: BridgedProducts, fields: Fields, expected: Tensor
) -> None:
    """Find out whether the model's code does more with its linear layers than to call them.

    `expected`: what `probe` returned.
    """
    recorder = ProbeRecorder(bridged.model.config, fields)
    ids, positions = _passage(bridged)
    kinds = _NOT_PLAIN + (RuntimeError,)  # noqa: RUF005  mypy
    try:
        with products.wrapped():
            found = bridged.logits(bridged.walk(ids, positions, recorder.visit))
    except kinds as error:
        products.problem = f"transformers does not only call its linear layers ({_first_line(error)})"
    else:
        if not _agree(found, expected, bridged.model.dtype == torch.float32):
            products.problem = "its results differ if its linear layers are called with rows"


def _passage(bridged: BridgedModel) -> tuple[Tensor, Tensor]:
    """Return ids and positions."""
    length = min(PASSAGE, bridged.config.max_context)
    positions = torch.arange(length, device=bridged.model.device)
    return (positions * 37 + 5) % bridged.config.vocab, positions


def _by_their_attention(bridged: BridgedModel, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the trunk's output and the logits."""
    reached: list[Tensor] = []
    hook = bridged.trunk.register_forward_hook(lambda *call: reached.append(call[-1].last_hidden_state[0]))
    bridged.model.set_attn_implementation("eager")
    output = bridged.model(input_ids=ids[None], use_cache=False)  # with positions as it numbers them
    bridged.model.set_attn_implementation(implementation_of(bridged.model.config))
    hook.remove()
    return reached[0], output.logits[0].float()


@contextmanager
def _explained(recorder: ProbeRecorder, also: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn errors inside transformers, which mean that the model is not a plain decoder, into a refusal."""
    kinds = _NOT_PLAIN + also
    try:
        yield
    except ImportError as error:
        reason = _first_line(error)
        raise recorder.refusal(f"transformers needs a package that is not installed ({reason})") from error
    except kinds as error:
        reason = _first_line(error)
        raise recorder.refusal(f"transformers does not run it as a plain decoder ({reason})") from error


def _first_line(error: Exception) -> str:
    """The other lines may list supported models, or how to install a package."""
    return next((line for line in map(str.strip, str(error).splitlines()) if line), type(error).__name__)


def _agree(ours: Tensor, theirs: Tensor, exact: bool) -> bool:
    allowed = 1e-3 if exact else 0.1  # half precision drifts by some percent over many layers
    return ours.shape == theirs.shape and bool((ours - theirs).norm() <= allowed * theirs.norm())
