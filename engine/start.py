"""Find a model and start an engine for it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.api.config import EngineConfig
from engine.kv.tiers.tier import Tier
from engine.models.find import Progress, find_model

if TYPE_CHECKING:
    from engine.serving.engine import Engine


def start(config: EngineConfig, progress: Progress | None = None, below: Sequence[Tier] = ()) -> "Engine":
    """Start an engine. torch is imported only after the model is found, so a wrong name fails at once.

    `below`: more cache tiers, below host memory.
    """
    place = find_model(config.model, dummy=config.dummy_weights, progress=progress)
    from engine.assembly import assemble

    return assemble(config, place, progress, below)
