"""What a config.json says, in the engine's words. Needs no torch."""

from pathlib import Path
from typing import Any

from engine.api.config import DecoderConfig
from engine.models.checkpoint import has_weights, stored_dtype
from engine.models.families import named, names
from engine.models.fields import MOST_LAYERS, MOST_TOKENS, MOST_WIDTH, Fields
from engine.models.packing import packing
from engine.models.rope_spec import rope_spec

DTYPES = {"float32": "float32", "float64": "float32", "float16": "float16", "bfloat16": "bfloat16"}


def read_config(folder: Path) -> DecoderConfig:
    """Reads config.json and, where there is one, generation_config.json."""
    return decoder_config(Fields.read(folder / "config.json"), read_generation(folder))


def read_generation(folder: Path) -> Fields:
    file = folder / "generation_config.json"
    return Fields.read(file) if file.is_file() else Fields(file, {})


def decoder_config(fields: Fields, generation: Fields) -> DecoderConfig:
    name = fields.text("model_type")
    if (family := named(name)) is None:
        raise fields.unsupported("model_type", f"the native decoder runs {', '.join(names())}")
    _refuse(fields)
    layers = fields.whole("num_hidden_layers", high=MOST_LAYERS)
    vocab = fields.whole("vocab_size", high=MOST_TOKENS)
    context = fields.whole("max_position_embeddings", high=MOST_TOKENS)
    return DecoderConfig(
        family=name,
        dtype=checkpoint_dtype(fields),
        hidden=fields.whole("hidden_size", high=MOST_WIDTH),
        vocab=vocab,
        max_context=context,
        norm_eps=fields.real("rms_norm_eps", 1e-6, high=1.0),
        rope=rope_spec(fields, context, family.theta),
        tied=fields.flag("tie_word_embeddings", family.tied),
        exits=_exits(fields, layers),
        start_id=start_id(fields, generation, vocab, family.start_id),
        stop_ids=stop_ids(fields, generation, vocab, family.stop_id),
        **family.attention.read(fields, layers),
        **family.feed_forward.read(fields, layers),
    )


def _exits(fields: Fields, layers: int) -> tuple[int, ...]:
    """`early_exit_layers`: a list of numbers of layers, from the first exit to the last."""
    exits = fields.list("early_exit_layers", [])
    for each in exits:
        if not isinstance(each, int) or isinstance(each, bool) or not 0 < each < layers:
            raise fields.bad("early_exit_layers", f"must be whole numbers from 1 to {layers - 1}")
    return tuple(sorted(set(exits)))


def _refuse(fields: Fields) -> None:
    """Parts that another decoder would need."""
    names = fields.list("architectures", [])
    if names and not any(isinstance(name, str) and name.endswith("ForCausalLM") for name in names):
        raise fields.unsupported("architectures", "it does not end in a head that predicts tokens")
    packing(fields)  # raises where its weights are quantized in a way that is not known


def refuse_quantized(fields: Fields) -> None:
    if fields.get("quantization_config") is not None:
        method = fields.inside("quantization_config").text("quant_method", "unknown")
        what = f"it is quantized by {method}; such weights are loaded for models of the Llama family alone"
        raise fields.unsupported("quantization_config", what)


def checkpoint_dtype(fields: Fields) -> str:
    key = "dtype" if fields.get("dtype") is not None else "torch_dtype"
    folder = fields.file.parent
    name = fields.text(key, "auto")
    if name == "auto":
        name = stored_dtype(folder) if has_weights(folder) else "float32"
    if name not in DTYPES:
        raise fields.unsupported(key, f"only {', '.join(DTYPES)} can be run")
    return DTYPES[name]


def start_id(fields: Fields, generation: Fields, vocab: int, default: int | None) -> int | None:
    for source in (fields, generation):
        if source.get("bos_token_id") is not None:
            id = source.whole("bos_token_id", low=-1, high=1 << 31)
            return id if 0 <= id < vocab else None
    return default if not fields.given("bos_token_id") and default is not None and default < vocab else None


def stop_ids(fields: Fields, generation: Fields, vocab: int, default: int | None) -> tuple[int, ...]:
    """What the generation config says stands first; ids outside the vocabulary are left out."""
    ids: list[Any] = [] if default is None or fields.given("eos_token_id") else [default]
    for source in (fields, generation):
        if (given := source.get("eos_token_id")) is not None:
            ids = given if isinstance(given, list) else [given]
            if any(not isinstance(id, int) or isinstance(id, bool) for id in ids):
                raise source.bad("eos_token_id", "must be a whole number or a list of them")
    return tuple(dict.fromkeys(id for id in ids if 0 <= id < vocab))
