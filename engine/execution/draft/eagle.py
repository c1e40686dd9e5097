"""EAGLE-3 heads, read from a folder: a layer that reads a token and what three of the model's have read."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.api.config import DecoderConfig
from engine.api.errors import BadCheckpoint
from engine.api.places import expanded
from engine.attention.base import Attend
from engine.execution.draft.files import host_of, read_exactly, weights_in
from engine.models.checkpoint import opened
from engine.models.config_json import decoder_config, refuse_quantized
from engine.models.decoder import Decoder, build_of, family_of
from engine.models.fields import Fields
from engine.models.find import CONFIG
from engine.models.layers.attention import GroupedAttention
from engine.models.layers.build import Build
from engine.models.layers.part import Part
from engine.models.layers.step import StepContext
from engine.models.rope import rope_table
from engine.models.source import finalize
from engine.quant.registry import named

NAME = "EAGLE-3 heads"
VOCAB = "draft_vocab_size"  # the field of config.json that only such folders have
_FEWEST = 7  # layers of the model, so that three different ones are read
_UNLIKELY = -1e9  # the logit of a token that the head does not know


class PairAttention(GroupedAttention):
    """Attention that reads a pair of vectors, which are already normed."""

    def __init__(self, config: DecoderConfig, index: int, build: Build) -> None:
        super().__init__(config, index, replace(build, norms_input=False))
        self.qkv = build.linear(2 * config.hidden, len(self.qkv.weight), bias=config.qkv_bias)


class EagleHead(nn.Module):
    """Created empty. `config`: of the head. It has its own embedding or uses the model's."""

    def __init__(
        self, config: DecoderConfig, model: Decoder, vocab: int, *, embeds: bool, norms_residual: bool
    ) -> None:
        super().__init__()
        dtype, width, count = model.embed.dtype, config.hidden, len(model.config.layers)
        self._model = (model,)  # in a tuple: it is no part of this module
        self._norms_residual = norms_residual
        self.spec, self._taps = config.layers[0], (2, count // 2, count - 3)
        self.rope = rope_table(config.rope, config.rotary_dim, model.config.max_context, dtype)
        beside = replace(config, layers=(*model.config.layers, self.spec))
        build, feed_forward = build_of(config, dtype), family_of(config).feed_forward
        assert feed_forward is not None
        self.attention: Part = PairAttention(beside, count, build)
        self.feed_forward = feed_forward.part()(beside, count, build)
        self.embedding_norm, self.hidden_norm, self.norm = (build.norm(width) for _ in range(3))
        self.fuse, self.head = build.linear(3 * width, width), build.linear(width, vocab)
        self.embed = nn.Parameter(torch.empty(config.vocab, width, dtype=dtype), False) if embeds else None
        self.known: Tensor | None = None  # the model's tokens that it knows; None: all

    def slots(self, layer: str) -> Iterator[tuple[str, Tensor]]:
        """Yield its tensors by their names in the file. `layer`: how those of its layer begin."""
        for part in (self.attention, self.feed_forward):
            for name, slot in part.slots():
                yield layer + name, slot.view
        yield f"{layer}input_layernorm.weight", self.embedding_norm.weight
        yield f"{layer}hidden_norm.weight", self.hidden_norm.weight
        yield "norm.weight", self.norm.weight
        yield "fc.weight", self.fuse.weight
        yield "lm_head.weight", self.head.weight
        if self.embed is not None:
            yield "embed_tokens.weight", self.embed

    @property
    def own_bytes(self) -> int:
        return sum(each.nbytes for each in self.parameters())

    def watch(self) -> None:
        """Have the model keep what those of its layers read."""
        self._model[0].taps = dict.fromkeys(self._taps)

    def states(self, hidden: Tensor, replayed: bool) -> Tensor:
        seen = self._model[0].tap_buffers if replayed else self._model[0].taps
        read = [each[: len(hidden)] for layer in self._taps if (each := seen[layer]) is not None]
        out: Tensor = self.fuse(torch.cat(read, 1))
        return out

    def forward(self, ids: Tensor, before: Tensor, at: Tensor, attend: Attend) -> tuple[Tensor, Tensor]:
        step, normed = StepContext(at, self.rope, attend), self.hidden_norm(before)
        x = normed if self._norms_residual else before
        x = x + self.attention.forward(self._pair(ids, normed), step)
        x = x + self.feed_forward.forward(x, step)
        return self.norm(x), x

    def cache(self, ids: Tensor, before: Tensor, at: Tensor, attend: Attend) -> None:
        pair = self._pair(ids, self.hidden_norm(before))
        self.attention.forward(pair, StepContext(at, self.rope, attend))

    def logits(self, out: Tensor) -> Tensor:
        found: Tensor = self.head(out).float()
        if self.known is None:
            return found
        full = found.new_full((len(found), self._model[0].config.vocab), _UNLIKELY)
        full[:, self.known] = found
        return full

    def _pair(self, ids: Tensor, normed: Tensor) -> Tensor:
        embedded = self._model[0].embedded(ids) if self.embed is None else F.embedding(ids, self.embed)
        return torch.cat((self.embedding_norm(embedded), normed), 1)


def eagle_folder(name: str) -> Path | None:
    """Return the folder if it holds an EAGLE-3 head."""
    folder = expanded(name)
    config = folder / CONFIG
    return folder if os.path.isfile(config) and Fields.read(config).given(VOCAB) else None


@torch.no_grad()
def read_eagle(folder: Path, model: object, device: torch.device, ranks: int = 1) -> EagleHead:
    """Read a head for this model. Raises if it does not fit it, or cannot run here."""
    fields = Fields.read(folder / CONFIG)
    decoder, config = host_of(NAME, model, device, ranks), _config(fields)
    theirs = decoder.config
    if (config.hidden, config.vocab) != (theirs.hidden, theirs.vocab):
        raise BadCheckpoint(
            f"{fields.file}: the head was made for a model of width {config.hidden} with {config.vocab} "
            f"tokens; this one has {theirs.hidden} and {theirs.vocab}"
        )
    if len(theirs.layers) < _FEWEST:
        raise BadCheckpoint(f"{fields.file}: {NAME} need a model of {_FEWEST} layers or more")
    file = weights_in(folder)
    with opened(file) as tensors:
        names = {*tensors.keys()}
    vocab = fields.whole(VOCAB, high=config.vocab)
    norms_residual, embeds = fields.flag("norm_before_residual", False), "embed_tokens.weight" in names
    with device:
        head = EagleHead(config, decoder, vocab, embeds=embeds, norms_residual=norms_residual).eval()
    layer = "midlayer." if any(name.startswith("midlayer.") for name in names) else "layers.0."
    slots = dict(head.slots(layer))
    shapes = {name: tuple(view.shape) for name, view in slots.items()}
    for name, tensor in read_exactly(file, shapes, decoder.embed.dtype, NAME, ("d2t", "t2d")).items():
        slots[name].copy_(tensor)
    if vocab < config.vocab or "d2t" in names:
        head.known = _known(file, vocab, config.vocab).to(device)
    finalize(head, named("none"))
    return head


def _config(fields: Fields) -> DecoderConfig:
    if fields.text("model_type") != "llama":
        raise fields.unsupported("model_type", f"{NAME} are supported as layers of the Llama family only")
    if fields.whole("num_hidden_layers", high=1000) != 1:
        raise fields.unsupported("num_hidden_layers", f"{NAME} of one layer are supported only")
    if fields.inside("eagle_config").given("eagle_aux_hidden_state_layer_ids"):
        raise fields.unsupported("eagle_config", "only the usual three layers of the model can be read")
    refuse_quantized(fields)
    plain = Fields(fields.file, fields.values | {"architectures": []})
    return decoder_config(plain, Fields(fields.file, {}))


def _known(file: Path, count: int, vocab: int) -> Tensor:
    """The model's token for each of the head's. The file has what to add to the head's number."""
    with opened(file) as tensors:
        if "d2t" not in tensors.keys():
            raise BadCheckpoint(f"{file}: d2t is missing: which {count} of {vocab} tokens the head knows")
        offsets: Tensor = tensors.get_tensor("d2t")
    if offsets.dtype is not torch.int64 or tuple(offsets.shape) != (count,):
        raise BadCheckpoint(f"{file}: d2t must hold {count} whole numbers")
    known = offsets + torch.arange(count)
    if not ((known >= 0) & (known < vocab)).all():
        raise BadCheckpoint(f"{file}: d2t names tokens that the model does not have")
    return known
