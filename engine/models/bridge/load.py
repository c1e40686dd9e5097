"""Loads a transformers model, if it can run over the engine's cache."""

from dataclasses import replace
from typing import Any

import torch
import transformers
from safetensors import SafetensorError

from engine.api.config import ModelConfig
from engine.api.errors import BadCheckpoint
from engine.kernels import switches
from engine.models.bridge.interface import BridgedModel, implementation_of
from engine.models.bridge.probe import probe, probe_products, probe_without_weights
from engine.models.bridge.products import BridgedProducts
from engine.models.bridge.short import shorten_parts, shorten_products
from engine.models.checkpoint import refuse_missing, shards
from engine.models.config_json import checkpoint_dtype, read_generation, refuse_quantized, start_id, stop_ids
from engine.models.fields import MOST_TOKENS, MOST_WIDTH, Fields
from engine.models.load_request import LoadRequest

CONTEXTS = ("max_position_embeddings", "max_seq_len", "seq_length")  # the fields that may limit it
# Published as models for images, text and sound, of which transformers builds the others only with packages
# that are not installed: the text model runs alone. Where its tensors are, and where it has them.
ALONE = {"gemma3n": {r"^model\.language_model\.": "model."}}
UNLIMITED = 1 << 15  # the context if no field does


def load_bridged(request: LoadRequest) -> BridgedModel:
    fields = Fields.read(request.place.folder / "config.json")
    refuse_quantized(fields)
    theirs = _their_config(request, fields)
    config = _described(theirs, fields)
    config = replace(config, max_context=request.context_of(config))
    probe_without_weights(theirs, config, fields)

    model = _dummy(request, theirs, config) if request.dummy else _filled(request, theirs, config)
    if switches.SHORT_PARTS:
        shorten_parts(model)
    bridged = BridgedModel(model.requires_grad_(False).eval(), config)
    logits = probe(bridged, fields)
    bridged.products = BridgedProducts(model, bridged.trunk, None if request.dummy else request.place.folder)
    if switches.SHORT_PRODUCTS:
        shorten_products(place.module for places in bridged.products.layers for place in places)
    probe_products(bridged, bridged.products, fields, logits)
    bridged.products.use(request.quantization)
    return bridged


def _their_config(request: LoadRequest, fields: Fields) -> Any:
    try:
        theirs = transformers.AutoConfig.from_pretrained(request.place.folder, trust_remote_code=False)
    except Exception as error:  # the configs raise errors of many types
        first, _, rest = str(error).partition("\n")  # other lines are installation advice
        reason = f"{first} {rest.strip().partition(chr(10))[0]}" if first.endswith(":") else first
        raise fields.unsupported("model_type", f"transformers cannot read its config: {reason}") from error
    return theirs.get_text_config(decoder=True) if theirs.model_type in ALONE else theirs


def _described(theirs: Any, fields: Fields) -> ModelConfig:
    text = theirs.get_text_config(decoder=True)
    keys = ("vocab_size", "hidden_size", *CONTEXTS, "bos_token_id", "eos_token_id")
    text_fields = Fields(fields.file, {key: getattr(text, key, None) for key in keys})
    if missing := [key for key in ("vocab_size", "hidden_size") if text_fields.get(key) is None]:
        why = f"its config has no {missing[0]}, which a plain decoder has"
        raise fields.unsupported("model_type", why)
    generation = read_generation(fields.file.parent)
    vocab = text_fields.whole("vocab_size", high=MOST_TOKENS)
    return ModelConfig(
        family=fields.text("model_type"),
        dtype=checkpoint_dtype(fields),
        hidden=text_fields.whole("hidden_size", high=MOST_WIDTH),
        layers=(),  # set by the probe
        vocab=vocab,
        max_context=_steady_context(text, _context(text_fields)),
        start_id=start_id(text_fields, generation, vocab, None),
        stop_ids=stop_ids(text_fields, generation, vocab, None),
    )


def _context(fields: Fields) -> int:
    """Return the longest text. Models whose positions are relative, or that have none, may not limit it.

    XLNet has a -1 then.
    """
    key = next((key for key in CONTEXTS if fields.get(key) not in (None, -1)), None)
    return UNLIMITED if key is None else fields.whole(key, high=MOST_TOKENS)


def _steady_context(text: Any, context: int) -> int:
    """Longrope rotates all tokens of a step differently once any of them is beyond this context."""
    rope = getattr(text, "rope_parameters", None) or {}
    for each in (rope, *rope.values()):
        if isinstance(each, dict) and each.get("rope_type") == "longrope":
            context = min(context, each.get("original_max_position_embeddings") or context)
    return context


def _dummy(request: LoadRequest, theirs: Any, config: ModelConfig) -> Any:
    with request.device, torch.random.fork_rng():
        torch.manual_seed(request.seed)
        return transformers.AutoModelForCausalLM.from_config(
            theirs, attn_implementation=implementation_of(theirs), dtype=request.dtype_of(config)
        )


def _filled(request: LoadRequest, theirs: Any, config: ModelConfig) -> Any:
    folder = request.place.folder
    total = sum(file.stat().st_size for file in shards(folder))
    if request.progress:
        request.progress(0, total)
    try:
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            config=theirs,
            key_mapping=ALONE.get(config.family),
            dtype=request.dtype_of(config),
            attn_implementation=implementation_of(theirs),
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    except (SafetensorError, OSError, RuntimeError) as error:
        raise BadCheckpoint(f"{folder}: {error}") from error
    refuse_missing(folder, sorted(report["missing_keys"]))
    model = model.to(request.device)
    if request.progress:
        request.progress(total, total)
    return model
