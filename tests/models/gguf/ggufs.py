"""GGUF files as llama.cpp's converter writes them, by the package gguf: its writer, its names, its rounding.

Reference for what the converter changes: convert_hf_to_gguf.py, `LlamaModel.permute` and the `modify_tensors`
of the Gemma models (norms plus one) and of the models with experts (stacked).
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.lazily import lazy

gguf = lazy("gguf")

PERMUTED = ("llama", "smollm3", "granite")
OFFSET = ("gemma", "gemma2", "gemma3")
EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(.*)\.weight")
HALVES = {
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}  # bytes with a float16

Array = np.ndarray[Any, Any]
Kind = Callable[[str], str]


def stored(weight: Array, kind: str, seed: int = 0) -> tuple[Array, Array]:
    """Return a weight's bytes in this type, and the numbers they stand for.

    The package cannot round to types whose names end with K: these get random bytes.
    """
    number = gguf.GGMLQuantizationType[kind]
    raw = (
        random_bytes(weight.shape, kind, seed) if kind.endswith("K") else gguf.quants.quantize(weight, number)
    )
    return raw, gguf.quants.dequantize(raw, number).reshape(weight.shape)


def random_bytes(shape: tuple[int, ...], kind: str, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    numbers, nbytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    blocks = rng.integers(0, 256, (int(np.prod(shape)) // numbers, nbytes), dtype=np.uint8)
    for at in HALVES.get(kind, (0,)):
        scales = rng.normal(0, 5e-4, (len(blocks), 1)).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)


def write_gguf(
    path: Path,
    architecture: str,
    config: Any,
    tensors: Mapping[str, Array],
    kind: Kind = lambda name: "Q8_0",
    more: Callable[[Any], None] = lambda writer: None,
) -> dict[str, Array]:
    """Write a checkpoint as GGUF. Returns the tensors of the checkpoint that it is equal to.

    `config`: of transformers. `kind`: the type of a matrix, by its name there. `more`: writes metadata.
    """
    writer = gguf.GGUFWriter(str(path), architecture)
    _settings(writer, architecture, config)
    more(writer)
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    exact: dict[str, Array] = {}
    stacks: dict[str, list[Array]] = {}
    for seed, (name, weight) in enumerate(sorted(tensors.items(), key=lambda each: _place(each[0]))):
        if config.tie_word_embeddings and name == "lm_head.weight":
            continue
        plain = (
            weight.ndim == 1
            or "norm" in name
            or name.endswith(("mlp.gate.weight", "block_sparse_moe.gate.weight"))
        )
        raw, exact[name] = stored(weight, "F32" if plain else kind(name), seed)
        if architecture in OFFSET and name.endswith("norm.weight"):
            raw = raw + 1
        if architecture in PERMUTED and (found := re.search(r"\.([qk])_proj\.", name)):
            heads = config.num_attention_heads if found[1] == "q" else config.num_key_value_heads
            raw = raw.reshape(heads, 2, -1, *raw.shape[1:]).swapaxes(1, 2).reshape(raw.shape)
        label, dtype = name, gguf.GGMLQuantizationType["F32" if plain else kind(name)]
        if (expert := EXPERT.fullmatch(name)) is not None:
            label = f"{expert[1]}.{expert[3]}.weight"
            stacks.setdefault(label, []).append(raw)
            if len(stacks[label]) < config.num_experts:
                continue
            raw = np.stack(stacks[label])
        target = names.get_name(label, try_suffixes=(".weight", ".bias"))
        assert target is not None, f"{architecture} has no {label}"
        writer.add_tensor(target, np.ascontiguousarray(raw), raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return exact


def _place(name: str) -> tuple[Any, ...]:
    """Sort experts by their numbers."""
    expert = EXPERT.fullmatch(name)
    return (name, 0) if expert is None else (f"{expert[1]}.{expert[3]}", int(expert[2]))


def _settings(writer: Any, architecture: str, config: Any) -> None:
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(dim * rope.get("partial_rotary_factor", 1.0)))
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
        if original := rope.get("original_max_position_embeddings"):
            writer.add_rope_scaling_orig_ctx_len(original)
    for name, add in (
        ("rms_norm_eps", writer.add_layer_norm_rms_eps),
        ("layer_norm_eps", writer.add_layer_norm_eps),
        ("norm_epsilon", writer.add_layer_norm_eps),
        ("attn_logit_softcapping", writer.add_attn_logit_softcapping),
        ("final_logit_softcapping", writer.add_final_logit_softcapping),
        ("embedding_multiplier", writer.add_embedding_scale),
        ("residual_multiplier", writer.add_residual_scale),
        ("attention_multiplier", writer.add_attention_scale),
        ("logits_scaling", writer.add_logit_scale),
        ("logit_scale", writer.add_logit_scale),
        ("num_experts", writer.add_expert_count),
        ("num_experts_per_tok", writer.add_expert_used_count),
        ("moe_intermediate_size", writer.add_expert_feed_forward_length),
        ("shared_expert_intermediate_size", writer.add_expert_shared_feed_forward_length),
    ):
        if (value := getattr(config, name, None)) is not None:
            add(value)
    if architecture in ("gemma2", "gemma3", "cohere2"):
        writer.add_sliding_window(config.sliding_window)
    if config.bos_token_id is not None:
        writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)
