"""What a row of the table of families has. Needs no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from engine.kernels import switches
from engine.models.kinds.base import PartKind
from engine.models.kinds.ends import Ends
from engine.models.kinds.linear import StateKind
from engine.models.kinds.names import NAMES, beside
from engine.models.kinds.rope import RopeKind

# pre: each part norms what it reads. sandwich: also its term. post: only its term. parallel: both parts of a
# block read the same norm of the stream. lone: as pre, and a block is one part, either of the two.
Arrangement = Literal["pre", "sandwich", "post", "parallel", "lone"]
NormKind = Literal["rms", "offset", "layer"]  # layers/norm.py


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The parts of a family's blocks, and its defaults for config.json."""

    attention: PartKind
    feed_forward: PartKind | None  # None: no layer has one
    linear: StateKind | None = None  # in some layers instead of attention
    dense: PartKind | None = None  # the feed-forward of layers without experts, if some may have none
    names: Mapping[str, str] = field(default_factory=lambda: NAMES)
    inside: str = (
        ""  # the field of config.json with the text model's own, if there are other models beside it
    )
    inner: tuple[str, ...] = ()  # what may be the model_type in there; the first one is the default
    usual: Mapping[str, Any] = field(default_factory=dict)  # fields that config.json may lack
    fields: Mapping[str, str] = field(default_factory=dict)  # its own names of fields, and the usual ones
    root: str = ""  # of its tensors' names; some checkpoints leave it out
    mtp: Mapping[str, str] = field(default_factory=dict)  # names of its head for multi-token prediction
    unread: tuple[str, ...] = ()  # the starts of tensors' names that belong to other models, such as drafts
    transposed: bool = False  # a tensor with the experts of a layer is [experts, inputs, outputs]
    arrangement: Arrangement = "pre"
    norms: NormKind = "rms"
    norm_bias: bool = False
    norm: str = ""  # a custom operator (layers/operators.py) instead of these norms
    product: str = ""  # a custom operator instead of the plain product
    rope: RopeKind = field(default_factory=RopeKind)
    context: int | None = None  # of a model whose config.json has none
    ends: Ends = field(default_factory=Ends)
    tied: bool = False
    start_id: int | None = None
    stop_id: int | None = None

    @property
    def chained(self) -> bool:
        """Whether a block is its parts, one after the other, as their GPU launches require."""
        normed = switches.NORMED_TERMS and self.arrangement in ("sandwich", "post")
        return normed or self.arrangement in ("pre", "lone")


def beside_images(family: Family, *inner: str, usual: Mapping[str, Any] | None = None) -> Family:
    """Return the family of a text model in a model for images and text; the others in there are not read."""
    unread = ("vision_tower.", "vision_model.", "multi_modal_projector.")
    names = beside("language_model", family.names)
    return replace(family, inside="text_config", inner=inner, names=names, unread=unread, usual=usual or {})
