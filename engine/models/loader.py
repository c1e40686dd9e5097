"""Loads weights from files, one file at a time, directly into a decoder's fused parameters."""

import math
import re
import zlib
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from engine.api.config import DecoderConfig
from engine.api.errors import BadCheckpoint, BadInput
from engine.later import without_data
from engine.models.checkpoint import Header, check, headers, opened, refuse_missing, sliced, state
from engine.models.decoder import Decoder, block
from engine.models.find import Progress
from engine.models.gguf.tensors import GgufTensors
from engine.models.layers.block import Block
from engine.models.layers.collective import Collective
from engine.models.layers.next_token import NextTokenHead
from engine.models.layers.part import Slot
from engine.models.layers.sharding import RankShare, joined
from engine.models.packing import packing_of
from engine.models.stacks import stacked_experts
from engine.quant.formats import Stored, joined_rows, nbytes, stored
from engine.quant.fp4 import Mxfp4Weight
from engine.quant.linear import Linear
from engine.quant.packing import Packing

HARMLESS = re.compile(r"rotary_emb\.inv_freq$")  # some exports include these computed values

# Tensors that accompany quantized weights: for rounding activations and the KV cache.
ROUNDING = re.compile(r"\.(input|activation|output|q|k|v)(_global)?_(scale|zero_point)$")


class Checkpoint:
    """The tensors of a folder. All headers are read up front, so a bad checkpoint is refused immediately."""

    def __init__(
        self,
        model: Decoder,
        folder: Path,
        progress: Progress | None = None,
        packing: Packing | None = None,
        *,
        device: torch.device | None = None,
        share: RankShare | None = None,
        own: Iterable[str] | None = None,
    ) -> None:
        """The model provides only shapes, so it may be hollow. `progress` is called on the first read.

        `packing`: the format of the quantized weights. `device`: where they are decoded, the model's device
        by default. `share`: read only this part of the tensors; the model is the whole one. `own`: the
        tensors that will be read, for the progress; None: all.
        """
        self._progress, self._packing, self._share = progress, packing, share
        self._device, self._dtype = device or model.embed.device, model.embed.dtype
        names, layers = model.family.names, len(model.config.layers)
        later = (f"{names['block'].format(layers + n)}." for n in range(model.config.extra_layers))
        unread = unread_beside(model.mtp, (*model.family.unread, *later))
        self._embedding, self._head = f"{names['embed']}.weight", f"{names['head']}.weight"
        found, root = headers(folder), model.family.root
        self._root = "" if any(name.startswith(root) for name in found) else root  # that the files leave out
        self._headers = {
            name: header
            for name, header in ((self._root + name, header) for name, header in found.items())
            if not HARMLESS.search(name)
            and not name.startswith(unread)
            and not (model.tied and name.startswith(f"{names['head']}."))
        }
        self._states = {header.file: state(header.file) for header in self._headers.values()}
        self._shapes = {name: slot.shape for name, slot in decoder_slots(model).items()}
        self._stacked = stacked_experts(self._shapes, self._headers, transposed=model.family.transposed)
        for name, expert in self._stacked.items():
            self._headers[name] = self._headers[expert.tensor]._replace(shape=expert.shape)
        for tensor in {expert.tensor for expert in self._stacked.values()}:
            del self._headers[tensor]
        packed = dict(self._find_packed())
        # The tensors of quantized weights.
        self._packed = {slot: names for slot, (_, names) in packed.items()}
        self._packings = {slot: each for slot, (each, _) in packed.items()}
        self._check(folder)
        read = self._shapes if own is None else own
        self._total = sum(self._headers[name].nbytes for slot in read for name in self._tensors(slot))
        self._done = 0

    @property
    def quantized(self) -> bool:
        """Whether any weight is quantized."""
        return bool(self._packed)

    @property
    def plain_share(self) -> float:
        """The share of the layers' weights that are not quantized."""
        sizes = {name: math.prod(shape) for name, shape in self._matrices()}
        packed = sum(size for name, size in sizes.items() if name in self._packed)
        return 1 - packed / sum(sizes.values())

    @property
    def bytes_per_weight(self) -> float:
        """Bytes per weight of the layers, if they are kept as stored."""
        numbers = kept = 0
        for name, (*outer, inputs) in self._matrices():
            outputs = math.prod(outer)
            numbers += outputs * inputs
            kept += nbytes(self._packings.get(name), outputs, inputs, self._dtype, self._device)
        return kept / numbers

    def _matrices(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """The weights of the layers, and their shapes."""
        outer = (self._embedding, self._head)
        return ((name, shape) for name, shape in self._shapes.items() if len(shape) > 1 and name not in outer)

    def check(self) -> None:
        """Raise if a file has changed since it was loaded: weights from two versions must not mix."""
        for file, before in self._states.items():
            if state(file) != before:
                raise BadInput(f"{file} was removed or changed since it was loaded; load the model again")

    def read(self, slots: dict[str, Slot]) -> None:
        """Fill these slots, file by file, dequantizing weights that are stored quantized."""
        for name, weight in self.weights(slots):
            view = slots[name].view
            plain = weight if isinstance(weight, Tensor) else weight.dequantized()[:, : view.shape[1]]
            view.copy_(self._share.padded(name, plain, self._shapes[name][0]) if self._share else plain)

    def fill(self, part: Block | Linear | Decoder) -> None:
        """Fill a layer, the head, or what a model has outside them."""
        if isinstance(part, Decoder):
            self.read(outer_slots(part) | dict(() if part.mtp is None else part.mtp.slots()))
        else:
            self.read(dict(part.slots()) if isinstance(part, Block) else {self._head: whole(part.weight)})

    def weights(self, slots: Iterable[str]) -> Iterator[tuple[str, Tensor | Stored | Mxfp4Weight]]:
        """Yield the weights for these slots as stored, file by file."""
        owner = {name: slot for slot in slots for name in self._tensors(slot)}
        waiting: dict[str, dict[str, Tensor]] = {}  # tensors read so far, by quantized weight
        for file in dict.fromkeys(self._headers[name].file for name in owner):
            with opened(file) as tensors:
                for name in (name for name in owner if self._headers[name].file == file):
                    slot = owner[name]
                    self._count(self._headers[name].nbytes)
                    if slot not in self._packed:
                        yield slot, self._plain(tensors, name)
                        continue
                    if isinstance(tensors, GgufTensors):
                        yield slot, self._shared(slot, tensors.four_bits(name, self._device))
                        continue
                    parts = waiting.setdefault(slot, {})
                    parts[name] = tensors.get_tensor(self._in_file(name)).to(self._device)
                    if len(parts) == len(self._packed[slot]):
                        yield slot, self._stored(slot, waiting.pop(slot))

    def _plain(self, tensors: Any, name: str) -> Tensor:
        """Read an unquantized tensor, or the rank's share of it."""
        if (share := self._share) is None:
            if isinstance(tensors, GgufTensors):
                return tensors.floats(name, self._dtype, self._device)
            if name in self._stacked:
                return self._sliced(tensors, name, tuple(map(slice, (0, 0), self._shapes[name])))
            whole: Tensor = tensors.get_tensor(self._in_file(name))
            return whole
        if share.zero(name):
            return torch.zeros(self._shapes[name])
        return joined([self._sliced(tensors, name, span) for span in share.spans(name, self._shapes[name])])

    def _sliced(self, tensors: Any, name: str, span: tuple[slice, ...]) -> Tensor:
        """Read part of an unquantized tensor."""
        expert = self._stacked.get(name)
        part: Tensor = (
            sliced(tensors, self._in_file(name), span)
            if expert is None
            else expert.weight(sliced(tensors, self._in_file(expert.tensor), expert.span(span)))
        )
        return part

    def _in_file(self, name: str) -> str:
        return name.removeprefix(self._root)

    def _tensors(self, slot: str) -> list[str]:
        return self._packed.get(slot, [slot])

    def _stored(self, slot: str, parts: dict[str, Tensor]) -> Tensor | Stored | Mxfp4Weight:
        packing = self._packings[slot]
        mark = "_" if packing.method == "mxfp4" else "."
        kinds = {name.rpartition(mark)[2]: tensor for name, tensor in parts.items()}
        try:
            return self._shared(slot, stored(packing, kinds, self._shapes[slot][1]))
        except BadCheckpoint as error:
            raise BadCheckpoint(f"{self._headers[next(iter(parts))].file}: {slot}: {error}") from None

    def _shared(self, slot: str, weight: Stored | Mxfp4Weight) -> Tensor | Stored | Mxfp4Weight:
        """Return the rank's share of a quantized weight."""
        if self._share is None:
            return weight
        if isinstance(weight, Mxfp4Weight):
            return self._share.of(slot, weight.dequantized())
        return joined_rows([weight.cut(*span) for span in self._share.spans(slot, self._shapes[slot])])

    def _count(self, nbytes: int) -> None:
        self._done += nbytes
        if self._progress and self._done <= self._total:
            self._progress(self._done, self._total)

    def _find_packed(self) -> Iterator[tuple[str, tuple[Packing, list[str]]]]:
        for slot, shape in self._shapes.items():
            if self._packing is None or slot == self._embedding:
                continue
            if (found := packing_of(self._packing, self._headers, slot, shape)) is not None:
                yield slot, found

    def _check(self, folder: Path) -> None:
        packed = set(chain(*self._packed.values()))
        for name, header in self._headers.items():
            if name in packed:
                continue  # already checked
            if name in self._shapes and name not in self._packed:
                check(name, header, header.loadable, [self._shapes[name]])
            elif not self._is_ignored(name, header):
                what = "is not part of this model; its config.json may belong to another model"
                raise BadCheckpoint(f"{header.file}: {name} {what}")
        there = self._headers | self._packed
        refuse_missing(folder, [name for name in self._shapes if name not in there])

    def _is_ignored(self, name: str, header: Header) -> bool:
        """Whether to ignore the tensor: an activation scale, or a zero bias of a quantized weight."""
        product, _, kind = name.rpartition(".")
        if kind != "bias" or f"{product}.weight" not in self._packed:
            return bool(self._packed and ROUNDING.search(name))
        with opened(header.file) as tensors:
            return not tensors.get_tensor(self._in_file(name)).any()


def decoder_slots(model: Decoder) -> dict[str, Slot]:
    """Return the slots of all tensors of the model, or of its stage, by their names in the checkpoint."""
    slots = outer_slots(model)
    if not model.tied and not model.config.after:
        slots |= head_slots(model, model.head)
    for each in model.blocks:
        slots |= dict(each.slots())
    return slots if model.mtp is None else slots | dict(model.mtp.slots())


def unread_beside(head: NextTokenHead | None, unread: tuple[str, ...]) -> tuple[str, ...]:
    """Return the starts of the names that are not read, if the head for multi-token prediction is read."""
    if head is None:
        return unread
    return (*(each for each in unread if not head.first.startswith(each)), *head.copies)


def outer_slots(model: Decoder) -> dict[str, Slot]:
    """Return the slots of the tensors that are never quantized."""
    names = model.family.names
    norm = {f"{names['norm']}.{kind}": whole(tensor) for kind, tensor in model.norm.named_parameters()}
    if (first := model.embed_norm) is not None:
        norm |= {f"{names['embed_norm']}.{kind}": whole(each) for kind, each in first.named_parameters()}
    return norm | ({f"{names['embed']}.weight": whole(model.embed)} if len(model.embed) else {})


def head_slots(model: Decoder, head: nn.Module) -> dict[str, Slot]:
    assert isinstance(head, Linear), "the head is quantized"
    return {f"{model.family.names['head']}.weight": whole(head.weight)}


def name_of(layer: Block, config: DecoderConfig) -> str:
    """Return a layer's name in the whole model."""
    return f"layers.{config.before + layer.index}"


def whole(view: Tensor) -> Slot:
    return Slot(view, tuple(view.shape))


def random_weights(module: nn.Module, seed: int, prefix: str = "") -> None:
    """Initialize a model, or one part of it (`prefix`: its name in the model), with random weights.

    Each tensor has its own seed, so the shapes of other tensors do not matter.
    """
    for name, tensor in module.named_parameters(prefix):
        if tensor.is_meta:
            continue  # hollow
        if "norm" in name:
            tensor.fill_(1)
        else:
            generator = torch.Generator(tensor.device).manual_seed(seed ^ zlib.crc32(name.encode()))
            tensor.normal_(0, 0.02, generator=generator)


def whole_shapes(config: DecoderConfig, dtype: torch.dtype) -> Decoder:
    """Return the model that the ranks share, without memory: its shapes are those of the checkpoint."""
    return without_data(lambda: Decoder(config, dtype))


def possible_ranks(config: DecoderConfig, most: int) -> list[int]:
    """Return the numbers of ranks, up to `most`, that can share a model."""
    whole, found = whole_shapes(config, torch.float32), []
    for ranks in range(1, most + 1):
        try:
            whole.shards(ranks)
            for index in range(len(config.layers)):
                without_data(partial(block, config, index, torch.float32, ranks))
        except BadInput:
            continue
        found.append(ranks)
    return found


def share_of(whole: Decoder, collective: Collective) -> RankShare:
    """Return a rank's share. Raises if a tensor cannot be split."""
    return RankShare(collective.rank, collective.ranks, whole.shards(collective.ranks))


@torch.no_grad()
def random_share(part: Block | Linear | Decoder, model: Decoder, seed: int, share: RankShare) -> None:
    """Fill a rank's layer, its head, or what is outside of both, with its share of random weights.

    The numbers are those of the whole model. `model`: the rank's, for its configuration.
    """
    config, dtype = model.config, model.embed.dtype
    slots: dict[str, Slot]
    with model.embed.device:
        if isinstance(part, Block):
            made = block(config, part.index, dtype)
            random_weights(made, seed, name_of(part, config))
            slots, sources = dict(part.slots()), dict(made.slots())
        elif isinstance(part, Decoder):
            whole = Decoder(config, dtype, hollow=True)
            random_weights(whole, seed)
            slots, sources = outer_slots(part), outer_slots(whole)
        else:
            head = Linear.empty(config.hidden, config.vocab, bias=False, dtype=dtype)
            random_weights(head, seed, "head")
            slots, sources = head_slots(model, part), head_slots(model, head)
    for name, slot in slots.items():
        found = sources[name].view
        repeated = found.dim() > len(slot.shape)  # one scale for each head
        slot.view.copy_(found[0] if repeated else share.of(name, found))


class RandomWeights:
    """Random weights for the parts of a model, in place of a checkpoint's."""

    def __init__(self, model: Decoder, seed: int, share: RankShare | None) -> None:
        self._model, self._seed, self._share = model, seed, share

    def fill(self, part: Block | Linear | Decoder) -> None:
        """Fill a layer, the head, or what a model has outside them."""
        if self._share is not None:
            random_share(part, self._model, self._seed, self._share)
        elif isinstance(part, Decoder):
            random_weights(part, self._seed)
        else:
            name = name_of(part, self._model.config) if isinstance(part, Block) else "head"
            random_weights(part, self._seed, name)

    def check(self) -> None:
        """They are always available."""
