"""Reads a config.json into a DecoderConfig. Needs no torch."""

from pathlib import Path
from typing import Any

from engine.api.config import DecoderConfig, RopeSpec
from engine.gguf.header import is_gguf
from engine.models.checkpoint import has_weights, stored_dtype
from engine.models.families import named, names
from engine.models.fields import MOST_LAYERS, MOST_TOKENS, MOST_WIDTH, TIED, Fields
from engine.models.gguf.config import gguf_fields
from engine.models.kinds.rope import rope_specs
from engine.models.packing import described, packing

DTYPES = {"float32": "float32", "float64": "float32", "float16": "float16", "bfloat16": "bfloat16"}


def config_fields(folder: Path) -> Fields:
    """Read config.json, or the metadata of a GGUF file."""
    return gguf_fields(folder) if is_gguf(folder) else Fields.read(folder / "config.json")


def read_config(folder: Path) -> DecoderConfig:
    """Read config.json and, if it exists, generation_config.json."""
    return decoder_config(config_fields(folder), read_generation(folder))


def read_generation(folder: Path) -> Fields:
    file = folder / "generation_config.json"
    return Fields.read(file) if file.is_file() else Fields(file, {})


def decoder_config(fields: Fields, generation: Fields) -> DecoderConfig:
    name = fields.text("model_type")
    if (family := named(name)) is None:
        raise fields.unsupported("model_type", f"the native decoder runs {', '.join(names())}")
    _refuse(fields, "ForConditionalGeneration" if family.inside else "ForCausalLM")
    if family.inside:
        inner = fields.inside(family.inside)
        if inner.text("model_type", family.inner[0]) not in family.inner:
            raise inner.unsupported("model_type", f"only {' and '.join(family.inner)} can be in a {name}")
        fields = fields.joined(family.inside)
    fields = fields.with_usual(family.usual)
    fields = fields.renamed(family.fields)
    linear = family.linear
    layers = fields.whole("num_hidden_layers", high=MOST_LAYERS) if linear is None else linear.count(fields)
    vocab = fields.whole("vocab_size", high=MOST_TOKENS)
    context = fields.whole("max_position_embeddings", family.context, high=MOST_TOKENS)
    rope, local_rope = rope_specs(fields, context, family.rope)
    attention = {**family.attention.read(fields, layers)}
    if linear is not None:
        attention["layers"] = linear.among(fields, attention["layers"])
        attention |= linear.read(fields, attention["layers"])
    made = DecoderConfig(
        family=name,
        dtype=checkpoint_dtype(fields),
        hidden=fields.whole("hidden_size", high=MOST_WIDTH),
        vocab=vocab,
        max_context=context,
        usual_context=min(rope.original_context, context) if rope.kind == "longrope" else None,
        rope=rope,
        local_rope=local_rope,
        tied=fields.flag(TIED, family.tied),
        exits=_exits(fields, layers),
        extra_layers=fields.whole("num_nextn_predict_layers", 0, low=0, high=MOST_LAYERS),
        start_id=start_id(fields, generation, vocab, family.start_id),
        stop_ids=stop_ids(fields, generation, vocab, family.stop_id),
        **attention,
        **({"mlp": 0} if family.feed_forward is None else family.feed_forward.read(fields, layers)),
        **family.ends.read(fields),
    )
    for spec in (rope, local_rope):
        _check_rope(fields, spec, made.rotary_dim)
    return made


def _check_rope(fields: Fields, spec: RopeSpec | None, dim: int) -> None:
    if spec is None or not dim:
        return
    rotated = int(dim * spec.share)
    if rotated % 2 or not rotated:
        raise fields.bad("partial_rotary_factor", f"must leave an even part of the {dim} numbers of a head")
    if any(len(each) not in (0, rotated // 2) for each in (spec.short_factors, spec.long_factors)):
        raise fields.unsupported(
            "rope_scaling", f"short_factor and long_factor must list {rotated // 2} numbers"
        )


def _exits(fields: Fields, layers: int) -> tuple[int, ...]:
    """Return `early_exit_layers`: the layer numbers of the exits, in ascending order."""
    exits = fields.list("early_exit_layers", [])
    for each in exits:
        if not isinstance(each, int) or isinstance(each, bool) or not 0 < each < layers:
            raise fields.bad("early_exit_layers", f"must be whole numbers from 1 to {layers - 1}")
    return tuple(sorted(set(exits)))


def _refuse(fields: Fields, head: str) -> None:
    """Refuse models that need another decoder. `head`: how the names of the others end."""
    names = fields.list("architectures", [])
    if names and not any(isinstance(name, str) and name.endswith(head) for name in names):
        raise fields.unsupported("architectures", "it has no language-modeling head")
    packing(fields)  # raises for unsupported quantized weights


def refuse_quantized(fields: Fields) -> None:
    if (found := described(fields)) is not None:
        what = f"it is quantized with {found[1]}, which is supported for models of native families only"
        raise fields.unsupported("quantization_config", what)


def checkpoint_dtype(fields: Fields) -> str:
    key = "dtype" if fields.get("dtype") is not None else "torch_dtype"
    folder = fields.file.parent
    name = fields.text(key, "auto")
    if name == "auto":
        name = stored_dtype(folder) if has_weights(folder) else "float32"
    if name not in DTYPES:
        raise fields.unsupported(key, f"only {', '.join(DTYPES)} are supported")
    return DTYPES[name]


def start_id(fields: Fields, generation: Fields, vocab: int, default: int | None) -> int | None:
    for source in (fields, generation):
        if source.get("bos_token_id") is not None:
            id = source.whole("bos_token_id", low=-1, high=1 << 31)
            return id if 0 <= id < vocab else None
    return default if not fields.given("bos_token_id") and default is not None and default < vocab else None


def stop_ids(fields: Fields, generation: Fields, vocab: int, default: int | None) -> tuple[int, ...]:
    """The generation config has precedence; ids outside the vocabulary are dropped."""
    ids: list[Any] = [] if default is None or fields.given("eos_token_id") else [default]
    for source in (fields, generation):
        if (given := source.get("eos_token_id")) is not None:
            ids = given if isinstance(given, list) else [given]
            if any(not isinstance(id, int) or isinstance(id, bool) for id in ids):
                raise source.bad("eos_token_id", "must be a whole number or a list of them")
    return tuple(dict.fromkeys(id for id in ids if 0 <= id < vocab))
