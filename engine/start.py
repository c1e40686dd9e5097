"""Find a model and start an engine for it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from engine.api.config import EngineConfig
from engine.distributed.crews.started import started_ranks
from engine.early import prepare_gpu
from engine.kv.pinned import bytes_ahead
from engine.kv.tiers.tier import Tier
from engine.models.config_json import config_fields, read_config
from engine.models.families import named
from engine.models.find import Progress, find_model
from engine.text.tokenizer import Tokenizer
from engine.timeline import timed

if TYPE_CHECKING:
    from engine.serving.engine import Engine


def start(
    config: EngineConfig,
    progress: Progress | None = None,
    below: Sequence[Tier] = (),
    found: Callable[[Path], None] = lambda folder: None,
    imported: Callable[[], None] = lambda: None,
    phase: Callable[[str], None] = lambda doing: None,
) -> "Engine":
    """Start an engine. torch is imported only after the model is found, so a wrong name fails at once.

    `below`: more cache tiers, below host memory. `found`: called with the model's folder.
    `imported`: called once torch is imported. `phase`: called with what the start does next.
    """
    phase("finding the model")
    place = find_model(config.model, dummy=config.dummy_weights, progress=progress)
    found(place.folder)
    _refuse_ranks(config, place.folder)
    phase("importing torch")
    ranks = started_ranks(config)  # they import torch, too
    try:
        wait_for_imports = prepare_gpu(config.device, bytes_ahead(config))
        with timed("the engine's modules"):
            from engine.assembly import assemble
        with timed("waiting for Triton"):
            wait_for_imports()
        imported()
        # Not before: it holds the GIL, as the imports do. The weights often wait for the disk or the device.
        tokenizer = Tokenizer.loading(place.folder)
        return assemble(config, place, tokenizer, progress, below, phase, ranks)
    except BaseException:
        if ranks is not None:
            ranks.end()
        raise


def _refuse_ranks(config: EngineConfig, folder: Path) -> None:
    """Raise if a native model has too few layers or heads for its ranks, before any of them starts."""
    if config.ranks == 1 or named(config_fields(folder).text("model_type")) is None:
        return
    for spec in read_config(folder).stage(0, config.pp).layers:
        if spec.has_keys and not spec.latent:
            spec.check_ranks(config.tp)
