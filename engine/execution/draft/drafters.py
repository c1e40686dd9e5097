"""Finds the draft models for a model, and prepares them."""

import os
from dataclasses import dataclass

import torch

from engine.api.cache_spec import CacheSpec, keeps_state
from engine.api.config import EngineConfig, ModelPlace
from engine.api.errors import BadInput, ModelNotFound
from engine.attention.base import AttentionBackend
from engine.attention.registry import choose as choose_attention
from engine.execution.draft.drafting import Drafter, EarlyExit, SmallModel
from engine.execution.draft.eagle import EagleHead, eagle_folder, read_eagle
from engine.execution.draft.files import host_of
from engine.execution.draft.heads import HeadDrafter
from engine.execution.draft.medusa import MedusaHeads, medusa_folder, read_medusa
from engine.execution.draft.next_tokens import ChainedHead, NextTokens, OwnHead
from engine.kv.store import KVStore
from engine.models.base import LanguageModel
from engine.models.decoder import Decoder
from engine.models.find import CONFIG, find_model
from engine.models.registry import load_model
from engine.speculation.speculator import WINDOWED

FOLDER = "draft"  # a folder inside the model's, with a draft model made for it


@dataclass(frozen=True, slots=True)
class DraftModels:
    """The draft models available for a model, before the cache exists."""

    small: LanguageModel | None
    exit_layer: int | None
    heads: MedusaHeads | None = None
    chained: ChainedHead | None = None

    @property
    def most(self) -> dict[str, int]:
        """By kind: how many tokens it can draft at once, if that is limited."""
        return {"draft": self.heads.count} if self.heads else {}

    @property
    def caches(self) -> tuple[CacheSpec, ...]:
        """What drafts cache of a token in layers after the model's."""
        return () if self.chained is None else (self.chained.spec,)

    def block_bytes(self, block_size: int, dtype: torch.dtype) -> int:
        """Extra bytes of a block for the small model's keys and values."""
        return KVStore.block_bytes(self.small.config.layers, block_size, dtype) if self.small else 0

    def drafters(
        self, model: LanguageModel, store: KVStore, attention: AttentionBackend, config: EngineConfig
    ) -> dict[str, Drafter]:
        made: dict[str, Drafter] = {}
        if self.small is not None:
            first = next(self.small.parameters())
            layers, size = self.small.config.layers, config.block_size
            own = choose_attention(config.attention, first.device, layers, first.dtype, block_size=size)
            made["draft"] = SmallModel(self.small, own, store)
        if self.heads:
            made["draft"] = HeadDrafter(self.heads)
        if self.chained is not None and isinstance(model, Decoder):
            if isinstance(self.chained, EagleHead):
                self.chained.watch()
            made["draft"] = NextTokens(self.chained, model.embed[0], store, attention, config.block_size)
        if self.exit_layer is not None and isinstance(model, Decoder):
            made["exit"] = EarlyExit(model, store, attention, self.exit_layer)
        return made


def find_draft_models(
    place: ModelPlace, model: LanguageModel, device: torch.device, config: EngineConfig
) -> DraftModels:
    """Find the draft models. Raises if a configured draft model does not fit or the exit layer is unknown."""
    exit_layer = _exit(place, model, config)
    if config.drafts_itself:
        decoder = host_of("heads for multi-token prediction", model, device, config.ranks)
        assert decoder.mtp is not None, "it is loaded with the model"
        return DraftModels(None, exit_layer, chained=OwnHead(decoder, decoder.mtp))
    if config.draft and (folder := medusa_folder(config.draft)) is not None:
        if config.forgets:
            raise BadInput(f"draft: {WINDOWED}")
        return DraftModels(None, exit_layer, read_medusa(folder, model, device, config.ranks))
    if config.draft and (folder := eagle_folder(config.draft)) is not None:
        if config.forgets:
            raise BadInput(f"draft: {WINDOWED}")
        return DraftModels(None, exit_layer, chained=read_eagle(folder, model, device, config.ranks))
    return DraftModels(_small(place, model, device, config), exit_layer)


def _small(
    place: ModelPlace, model: LanguageModel, device: torch.device, config: EngineConfig
) -> LanguageModel | None:
    name = config.draft
    if config.forgets:
        if name:
            raise BadInput(f"draft: {WINDOWED}")
        return None
    if name is None:
        folder = place.folder / FOLDER
        if config.dummy_weights or not os.path.isfile(folder / CONFIG):
            return None
        name = str(folder)
    if not name:
        return None
    try:
        found = find_model(name, dummy=config.dummy_weights)
    except ModelNotFound as error:
        raise type(error)(f"draft: {error}") from None
    small = load_model(
        found,
        device=device,
        dtype=config.dtype,
        max_context=config.max_context,
        dummy=config.dummy_weights,
    )
    its = small.config
    if keeps_state(its.layers):
        raise BadInput(f"draft: {found.name} keeps a recurrent state, which cannot go back to before a draft")
    if its.vocab != model.config.vocab:
        raise BadInput(
            f"draft: {found.name} has {its.vocab} tokens and {place.name} {model.config.vocab}; "
            "a draft needs the same tokenizer"
        )
    if its.max_context < model.config.max_context:
        raise BadInput(
            f"draft: {found.name} holds {its.max_context} tokens and {place.name} "
            f"{model.config.max_context}; lower max_context to {its.max_context}"
        )
    return small


def _exit(place: ModelPlace, model: LanguageModel, config: EngineConfig) -> int | None:
    exits = model.config.exits if isinstance(model, Decoder) else ()
    if keeps_state(model.config.layers):
        if config.exit_layer is not None:
            raise BadInput(f"exit_layer: {place.name} keeps a recurrent state, which drafts would change")
        return None
    if config.exit_layer is None:
        return exits[0] if exits else None
    if config.exit_layer not in exits:
        named = ", ".join(map(str, exits)) or "none"
        raise BadInput(
            f"exit_layer: {place.name} was trained to exit after layer {named}, not {config.exit_layer}"
        )
    return config.exit_layer
