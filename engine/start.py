"""Finds a model, and starts an engine for it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.api.config import EngineConfig
from engine.kv.tiers.tier import Tier
from engine.models.find import Progress, find_model

if TYPE_CHECKING:
    from engine.serving.engine import Engine


def start(config: EngineConfig, progress: Progress | None = None, below: Sequence[Tier] = ()) -> "Engine":
    """Torch comes when there is something to load: a name that leads nowhere is told at once.

    `below`: more tiers of the cache, under the host's.
    """
    place = find_model(config.model, dummy=config.dummy_weights, progress=progress)
    from engine.assembly import assemble

    return assemble(config, place, progress, below)
