"""The metadata of a GGUF file as the config.json of its family. Needs no torch."""

from collections import Counter
from pathlib import Path
from typing import Any

from engine.gguf.header import GgufFile, read_header
from engine.models.families import Family, named
from engine.models.fields import Fields
from engine.models.gguf.architectures import Architecture, architecture_of
from engine.models.kinds import Grouped

_SETTINGS = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "rope.freq_base": "rope_theta",
}
_DTYPES = {"F32": "float32", "F16": "float16"}  # of the other types: bfloat16


def gguf_fields(path: Path) -> Fields:
    """Return what config.json would hold. Values are as untrusted as those of config.json."""
    file = read_header(path)
    prefix, made_of = architecture_of(file)
    family = named(made_of.family)
    assert family is not None, "the table names built-in families"
    return Fields(path, _values(file, prefix, made_of, family))


def _values(file: GgufFile, prefix: str, made_of: Architecture, family: Family) -> dict[str, Any]:
    def given(key: str) -> Any:
        return file.value(f"{prefix}.{key}")

    found: dict[str, Any] = {
        "model_type": made_of.family,
        "dtype": _dtype(file),
        "rope_theta": 10_000.0,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "quantization_config": {"quant_method": "gguf"},
        "bos_token_id": file.value("tokenizer.ggml.bos_token_id"),
        "eos_token_id": file.stop_ids() or None,
        **made_of.fixed,
    }
    for key, name in {**_SETTINGS, **made_of.settings}.items():
        if (value := given(key)) is not None:
            found[name] = value
    if (embedding := file.tensors.get("token_embd.weight")) is not None:
        found["vocab_size"] = embedding.shape[0]
    for kind in ("rms_", ""):
        if (value := given(f"attention.layer_norm_{kind}epsilon")) is not None:
            found[family.ends.eps[0]] = value
    found["mlp_bias"] = "blk.0.ffn_up.bias" in file.tensors
    if isinstance(family.attention, Grouped) and family.attention.bias is not None:
        found[family.attention.bias[0]] = "blk.0.attn_q.bias" in file.tensors
    if "intermediate_size" not in found:  # a file without dense layers may not have it
        found["intermediate_size"] = given("expert_feed_forward_length")
    _add_heads(file, prefix, made_of, found)
    _add_rope(file, prefix, found)
    return found


def _dtype(file: GgufFile) -> str:
    """Return the type to compute in: that of most weights, or bfloat16 if they are quantized."""
    nbytes: Counter[str] = Counter()
    for span in file.tensors.values():
        nbytes[span.kind] += span.nbytes
    most = nbytes.most_common(1)
    return _DTYPES.get(most[0][0], "bfloat16") if most else "float32"


def _add_heads(file: GgufFile, prefix: str, made_of: Architecture, found: dict[str, Any]) -> None:
    """Add the width of a head, which the families have various defaults for."""
    heads, hidden = found.get("num_attention_heads"), found.get("hidden_size")
    key, value = (file.value(f"{prefix}.attention.{each}_length") for each in ("key", "value"))
    if None not in (key, value) and key != value:
        fields = Fields(file.path, {f"{prefix}.attention.value_length": value})
        raise fields.unsupported(
            f"{prefix}.attention.value_length", f"only that of keys, {key}, is supported"
        )
    if not isinstance(heads, int) or not isinstance(hidden, int) or heads < 1:
        return  # refused later, by name
    found["head_dim"] = hidden // heads if key is None else key
    if made_of.score_width:
        whole = found.get("num_hidden_layers") == made_of.score_width
        found["query_pre_attn_scalar"] = hidden / heads if whole else found["head_dim"]


def _add_rope(file: GgufFile, prefix: str, found: dict[str, Any]) -> None:
    rotated, dim = file.value(f"{prefix}.rope.dimension_count"), found.get("head_dim")
    if isinstance(rotated, int) and isinstance(dim, int) and 0 < rotated < dim:
        found["partial_rotary_factor"] = rotated / dim
    kind, factor, original, attention = (
        file.value(f"{prefix}.rope.scaling.{each}")
        for each in ("type", "factor", "original_context_length", "attn_factor")
    )
    scaling = {"factor": factor, "original_max_position_embeddings": original, "attention_factor": attention}
    scaling = {key: value for key, value in scaling.items() if value is not None}
    short, long = (file.floats(f"rope_factors_{each}.weight") for each in ("short", "long"))
    if (factors := file.floats("rope_freqs.weight")) is not None:
        # Llama 3.1: the file has the result of its formula instead of its settings.
        found["rope_scaling"] = {"rope_type": "longrope", "factor": 1.0, "attention_factor": 1.0}
        found["rope_scaling"] |= {"short_factor": factors, "long_factor": factors}
    elif short is not None and long is not None:
        found["rope_scaling"] = {
            "rope_type": "longrope",
            **scaling,
            "short_factor": short,
            "long_factor": long,
        }
    elif kind not in (None, "none"):
        found["rope_scaling"] = {"rope_type": kind, **scaling}
