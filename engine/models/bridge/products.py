"""The products of a transformers model, in any scheme for weights.

Its linear layers are modules inside its layers, by names that differ from family to family. Each is replaced
where it is, and put back for the scheme `none`. Its exact weight is read from the checkpoint again, if that
has it in the same form.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.falcon.modeling_falcon import FalconLinear
from transformers.pytorch_utils import Conv1D

from engine.api.errors import BadInput
from engine.models.checkpoint import Header, headers, opened, sliced
from engine.quant.base import Scheme, make_product
from engine.quant.registry import choose, named, of_head

# Small products that choose or weigh experts. Their last bits decide which ones run.
_CHOOSERS = ("gate", "router", "shared_expert_gate", "wg")
_KINDS = (nn.Linear, Conv1D, FalconLinear)  # other classes may compute something else
_FEW = 4  # tensors of one shape, among which one is searched by its numbers


class FoldedProduct(nn.Module):
    """A product of rows, called with any number of dimensions before the last."""

    def __init__(self, product: nn.Module) -> None:
        super().__init__()
        self.product = product

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.product(x.reshape(-1, x.shape[-1]))
        return out.reshape(*x.shape[:-1], out.shape[-1])


@dataclass(frozen=True, slots=True)
class LinearPlace:
    """Where a linear layer of transformers is."""

    owner: nn.Module
    attribute: str
    module: Any  # nn.Linear, or Conv1D, whose weight is [inputs, outputs]
    name: str  # of its weight in the model

    @property
    def shape(self) -> tuple[int, int]:
        """[outputs, inputs]"""
        first, second = self.module.weight.shape
        return (second, first) if self.swapped else (first, second)

    @property
    def swapped(self) -> bool:
        return isinstance(self.module, Conv1D)

    def make(self, scheme: Scheme) -> None:
        """Replace the module, which must hold its weight, and drop that."""
        weight = self.module.weight
        if scheme is named("none"):
            setattr(self.owner, self.attribute, self.module)
            return
        given = weight.T.contiguous() if self.swapped else weight
        setattr(self.owner, self.attribute, FoldedProduct(make_product(scheme, given.data, self.module.bias)))
        self.module.weight = nn.Parameter(torch.empty_like(weight, device="meta"), requires_grad=False)


class BridgedProducts:
    """All linear layers in the layers of a model, and its head."""

    def __init__(self, model: Any, trunk: nn.Module, folder: Path | None) -> None:
        """`folder`: of its weights; None: they are random."""
        own = model.get_output_embeddings()
        embedding = model.get_input_embeddings()
        first = next(iter(model.parameters()))
        self.device, self.dtype = first.device, first.dtype
        names = {module: name for name, module in model.named_modules()}
        count = model.config.get_text_config(decoder=True).num_hidden_layers
        found = (each for each in trunk.modules() if isinstance(each, nn.ModuleList) and len(each) == count)
        stacks = list(next(found, ()))
        self.layers = [_places(layer, names) for layer in stacks]
        self._head: LinearPlace | None = None
        if type(own) is nn.Linear and own.weight is not embedding.weight:
            prefix, _, attribute = names[own].rpartition(".")
            self._head = LinearPlace(model.get_submodule(prefix), attribute, own, f"{names[own]}.weight")
        every = [place for places in self.layers for place in places]
        every += [] if self._head is None else [self._head]
        held = {id(each): each.nbytes for each in (*model.parameters(), *model.buffers())}
        self._rest = sum(held.values()) - sum(each.module.weight.nbytes for each in every)
        self._files: Mapping[str, tuple[str, Header]] = {}
        self._missing = next((each.name for each in every), "its weights")
        if folder is not None:
            self._files, self._missing = _found(every, folder, model.base_model_prefix)
        self._folder, self._every = folder, every
        self.problem = ""  # why its linear layers cannot be replaced

    @contextmanager
    def wrapped(self) -> Iterator[None]:
        """Within this block, all linear layers are called as products are."""
        try:
            for place in self._every:
                setattr(place.owner, place.attribute, FoldedProduct(place.module))
            yield
        finally:
            for place in self._every:
                setattr(place.owner, place.attribute, place.module)

    def use(self, name: str) -> None:
        """Make all parts in a scheme, while they hold their exact weights."""
        scheme = self.scheme(name)
        for part in range(len(self.layers) + 1):
            self.replace(part, scheme)

    @property
    def source(self) -> "BridgedProducts":
        """As of a decoder: what knows the schemes."""
        return self

    def scheme(self, name: str) -> Scheme:
        problem = self.problem or ("" if any(self.layers) else "its layers have no linear layers")
        if name != "none" and problem:
            raise BadInput(
                f"quantization {name!r}: the model runs through transformers, and {problem}",
                field="scheme",
                value=name,
            )
        return choose(name, self.device, self.dtype)

    def check(self) -> None:
        """Raise unless the exact weights can be read again."""
        if self._folder is None:
            raise BadInput(
                "the weights are random, and run through transformers; choose a scheme at the start"
            )
        if self._missing:
            raise BadInput(
                f"{self._folder.name} runs through transformers and holds {self._missing} in another form, "
                "so its weights cannot be read again; choose a scheme at the start"
            )
        for file in {header.file for _, header in self._files.values()}:
            with opened(file):
                pass

    def of_head(self, scheme: Scheme) -> Scheme:
        return named("none") if self._head is None else of_head(scheme)

    def nbytes(self, scheme: Scheme) -> int:
        """The approximate size of all weights under a scheme."""
        places = [(place, scheme) for places in self.layers for place in places]
        places += [] if self._head is None else [(self._head, self.of_head(scheme))]
        return self._rest + sum(each.nbytes(*place.shape, self.dtype, self.device) for place, each in places)

    @torch.no_grad()
    def replace(self, part: int, scheme: Scheme) -> None:
        """Make a part in this scheme: a layer, or after the last one the head."""
        head = part == len(self.layers)
        places: Sequence[LinearPlace] = self.layers[part] if not head else [self._head] if self._head else []
        for place in places:
            if place.module.weight.is_meta:
                setattr(place.owner, place.attribute, None)  # there may not be memory for both
                place.module.weight = nn.Parameter(self._read(place), requires_grad=False)
            place.make(self.of_head(scheme) if head else scheme)

    def _read(self, place: LinearPlace) -> Tensor:
        name, header = self._files[place.name]
        with opened(header.file) as tensors:
            read: Tensor = tensors.get_tensor(name)
        return read.to(self.device, self.dtype)


def _places(layer: nn.Module, names: Mapping[nn.Module, str]) -> list[LinearPlace]:
    found = []
    for owner in layer.modules():
        for attribute, child in owner.named_children():
            if type(child) in _KINDS and attribute not in _CHOOSERS:
                found.append(LinearPlace(owner, attribute, child, f"{names[child]}.weight"))
    return found


def _found(
    places: Sequence[LinearPlace], folder: Path, prefix: str
) -> tuple[dict[str, tuple[str, Header]], str]:
    """Find the weights in the files, and return the name of the first that has another form there, or ""."""
    known, found = headers(folder), dict[str, tuple[str, Header]]()
    for place in places:
        names = place.name, place.name.removeprefix(f"{prefix}."), f"{prefix}.{place.name}"
        alike = [each for each, header in known.items() if header.shape == tuple(place.module.weight.shape)]
        named_so = [each for each in names if each in known]
        candidates = named_so or (alike if len(alike) <= _FEW else [])  # a head may have another name there
        same = (each for each in candidates if _equal(place.module.weight, each, known[each]))
        if (name := next(same, None)) is None:
            return {}, place.name
        found[place.name] = name, known[name]
    return found, ""


def _equal(weight: Tensor, name: str, header: Header) -> bool:
    """Whether the first, middle and last row of a tensor in a file are those of the weight."""
    if header.shape != tuple(weight.shape):
        return False
    with opened(header.file) as tensors:
        for row in {0, len(weight) // 2, len(weight) - 1}:
            span = slice(row, row + 1), slice(None)
            if not torch.equal(sliced(tensors, name, span).to(weight.dtype), weight[span].cpu()):
                return False
    return True
