"""Chooses the implementation for a model_type, and loads models with it."""

from dataclasses import replace

import torch

from engine.api.cache_spec import keeps_state
from engine.api.config import DecoderConfig, DTypeName, ModelPlace
from engine.api.errors import BadInput
from engine.devices import unfit
from engine.gguf.header import is_gguf
from engine.models.base import LanguageModel
from engine.models.checkpoint import headers
from engine.models.config_json import config_fields, read_config
from engine.models.decoder import Decoder, Source, family_of, next_token_head
from engine.models.families import named as family_named
from engine.models.find import Progress
from engine.models.gguf.loss import report_loss
from engine.models.layers.collective import Collective
from engine.models.layers.next_token import NextTokenHead
from engine.models.load_request import LoadRequest
from engine.models.loader import Checkpoint, RandomWeights, decoder_slots, share_of, whole_shapes
from engine.models.packing import packing
from engine.models.source import Mxfp4Source, PlainSource, finalize
from engine.models.stored import StoredSource
from engine.quant.packing import Packing
from engine.quant.registry import named


def native(request: LoadRequest) -> LanguageModel:
    folder = request.place.folder
    config = read_config(folder)
    entire = replace(config, max_context=request.context_of(config))
    config = entire if request.stages == 1 else stage_of(entire, request.place, request.stages, request.stage)
    dtype = request.dtype_of(config)
    model = _hollow(request, config, dtype)
    whole, share = model, None
    if request.collective is not None or config is not entire:
        whole = whole_shapes(entire, dtype)
    if request.collective is not None:
        share = share_of(whole, request.collective)
    packed, checkpoint = packing(config_fields(folder)), None
    if not request.dummy:
        own, device = None if config is entire else decoder_slots(model), request.device
        checkpoint = Checkpoint(whole, folder, request.progress, packed, device=device, share=share, own=own)
    weights = checkpoint or RandomWeights(model, request.seed, share)
    model.source = _source(request, config, dtype, weights, packed)
    scheme = model.source.scheme(request.quantization)
    weights.fill(model)
    if not config.after:
        model.head = model.new_head(scheme)
    for index in range(len(config.layers)):
        model.layers[index] = model.source.layer(index, scheme)
    finalize(model, named("none"))  # what is not quantized keeps the checkpoint's dtype
    if checkpoint is not None and request.collective is None and is_gguf(folder):
        report_loss(model.blocks[0], request.place, scheme.name, dtype)
    return model


def _hollow(request: LoadRequest, config: DecoderConfig, dtype: torch.dtype) -> Decoder:
    """Create the model on its device, without its layers."""
    try:
        with request.device:
            model = Decoder(config, dtype, hollow=True, collective=request.collective).eval()
    except RuntimeError as error:
        raise unfit(request.place.name, request.device, error) from error
    if request.mtp:
        model.mtp = own_head(request, config, dtype)
    return model


def _source(
    request: LoadRequest,
    config: DecoderConfig,
    dtype: torch.dtype,
    weights: Checkpoint | RandomWeights,
    packed: Packing | None,
) -> Source:
    """Return what makes the layers and the head, now and in other schemes later."""
    device, collective = request.device, request.collective
    small = packed is not None and packed.method == "mxfp4" and device.type == "cuda"
    kind = Mxfp4Source if small and collective is None and dtype is torch.bfloat16 else PlainSource
    source = kind(config, dtype, device, weights.fill, weights.check, collective)
    if packed is None or not packed.names or isinstance(weights, RandomWeights) or not weights.quantized:
        return source
    return StoredSource(source, weights, packed)


def own_head(request: LoadRequest, config: DecoderConfig, dtype: torch.dtype) -> NextTokenHead:
    """Create the model's empty head for multi-token prediction. Raises if it has none, or cannot run here."""
    if not family_of(config).mtp:
        raise BadInput(f"draft: {config.family} models have no head for multi-token prediction that is known")
    with request.device:
        head = next_token_head(config, dtype).eval()
    if not request.dummy and not any(name.startswith(head.first) for name in headers(request.place.folder)):
        raise BadInput(
            f"draft: {request.place.name} comes without its head for multi-token prediction "
            f"({head.first}weight)"
        )
    return head


def stage_of(config: DecoderConfig, place: ModelPlace, stages: int, number: int) -> DecoderConfig:
    """Return the configuration of a stage. Raises if the model cannot be split like that."""
    parts = [config.stage(each, stages) for each in range(stages)]
    kinds = [sorted(map(repr, each.layers)) for each in parts]
    if keeps_state(config.layers) and kinds.count(kinds[0]) < len(kinds):
        raise BadInput(
            f"pp: {place.name} has layers with a recurrent state, and {stages} stages would not have equally "
            "many of each kind"
        )
    return parts[number]


def check_stages(place: ModelPlace, stages: int) -> None:
    """Raise if a model cannot be split into this many stages of a pipeline."""
    if family_named(config_fields(place.folder).text("model_type")) is None:
        raise BadInput(
            f"pp: {place.name} is run by transformers, which cannot split it into {stages} stages; "
            "leave pp at 1"
        )
    stage_of(read_config(place.folder), place, stages, 0)


def bridged(request: LoadRequest) -> LanguageModel:
    if request.mtp:
        raise BadInput(
            f"draft: {request.place.name} is run by transformers, without a head for multi-token prediction"
        )
    if request.collective is not None:
        raise BadInput(
            f"tp: {request.place.name} is run by transformers, which cannot share it between "
            f"{request.collective.ranks} ranks; leave tp at 1"
        )
    # Imported here because the native path does not need transformers.
    from engine.models.bridge.load import load_bridged

    return load_bridged(request)


def load_model(
    place: ModelPlace,
    *,
    device: str | torch.device = "cpu",
    dtype: DTypeName = "auto",
    max_context: int | None = None,
    quantization: str = "none",
    dummy: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
    collective: Collective | None = None,
    stage: int = 0,
    stages: int = 1,
    mtp: bool = False,
) -> LanguageModel:
    """Load a model on its device. Models of no native family run through transformers.

    `collective`: of the ranks that share the model; only the share of its own rank is loaded.
    `stage`, of several `stages`: only the layers of this part of a pipeline are loaded.
    `mtp`: also the head for multi-token prediction that the checkpoint has.
    """
    request = LoadRequest(
        place=place,
        device=torch.device(device),
        dtype=dtype,
        max_context=max_context,
        quantization=quantization,
        dummy=dummy,
        seed=seed,
        progress=progress,
        collective=collective,
        stage=stage,
        stages=stages,
        mtp=mtp,
    )
    model_type = config_fields(place.folder).text("model_type")
    return bridged(request) if family_named(model_type) is None else native(request)
