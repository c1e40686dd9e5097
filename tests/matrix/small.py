"""Small random models of each architecture."""

from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.runner.letters import VOCAB, byte_tokenizer

MOST = 40_000_000  # parameters; a model with more is missing something below

# What a config gets of these, if it has such a field. None is added to a config without it.
FIELDS: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,
    "init_std": 0.15,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "d_model": 64,
    "decoder_layers": 3,
    "encoder_layers": 1,
    "decoder_attention_heads": 4,
    "encoder_attention_heads": 4,
    "decoder_ffn_dim": 96,
    "encoder_ffn_dim": 96,
    "ffn_dim": 96,
    "word_embed_proj_dim": 64,
    "embedding_size": 64,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "expert_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 12,
    "rotary_dim": 16,
    "n_positions": 256,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": VOCAB,
}
# Norms of small outputs of linear attention make rounding errors large, and weights of 0.15 do so again.
HYBRID: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "initializer_range": 0.1,
}
# Granite 4 and Bamba, and Nemotron-H, name the same sizes differently.
MAMBA: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "initializer_range": 0.1,
}
CHANGES: dict[str, dict[str, Any]] = {
    "granitemoeshared": {"shared_intermediate_size": 48},
    "granitemoehybrid": MAMBA | {"layer_types": HYBRID["layer_types"], "shared_intermediate_size": 48},
    "bamba": MAMBA | {"attn_layer_indices": [1], "mamba_n_groups": 2},
    "falcon_h1": MAMBA | {"mamba_d_ssm": 128, "mamba_n_groups": 2, "key_multiplier": 0.7},
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 2, "state_size": 16, "initializer_range": 0.1},
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
        "mamba_num_heads": 8,
        "mamba_head_dim": 12,
        "n_groups": 2,
        "ssm_state_size": 16,
        "moe_shared_expert_intermediate_size": 48,
        "initializer_range": 0.1,
    },
    "gemma2": {"query_pre_attn_scalar": 8, "attn_logit_softcapping": 3.0},
    "gemma3_text": {"query_pre_attn_scalar": 8},
    "gemma3n_text": {
        "num_kv_shared_layers": 0,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "laurel_rank": 8,
        "intermediate_size": [96] * 3,
        "activation_sparsity_pattern": [0.0] * 3,
    },
    "dbrx": {
        "d_model": 64,
        "n_heads": 4,
        "n_layers": 3,
        "max_seq_len": 256,
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
        "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "cpmant": {
        "dim_head": 16,
        "dim_ff": 96,
        "prompt_length": 4,
        "max_distance": 64,
        "position_bias_num_buckets": 16,
        "segment_types": 4,
        "prompt_types": 4,
    },
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1},
    "olmo_hybrid": {"layer_types": ["linear_attention", "linear_attention", "full_attention"]},
    "mpt": {"n_heads": 4, "n_layers": 3, "max_seq_len": 256},
    "llama4_text": {
        "layer_types": ["chunked_attention", "full_attention", "chunked_attention"],
        "no_rope_layers": [1, 0, 1],
        "intermediate_size_mlp": 96,
        "interleave_moe_layer_step": 2,
        "attention_chunk_size": 21,
        "floor_scale": 30,
    },
    "zaya": {"num_experts_per_tok": 1},
    "zamba2": {"layer_types": ["linear_attention", "hybrid", "linear_attention"]},
    "xlnet": {"d_head": 16, "d_inner": 96, "n_layer": 3, "n_head": 4},
    "reformer": {"axial_pos_embds_dim": [16, 48], "axial_pos_shape": [16, 16]},
    "ministral3": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e6,
            "factor": 4.0,
            "original_max_position_embeddings": 21,
            "max_position_embeddings": 256,
            "llama_4_scaling_beta": 0.5,
        }
    },
    "phi3": {"original_max_position_embeddings": 256},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_hidden_layers": 2, "window_size": 21},
    "qwen3_next": HYBRID,
    "qwen3_5_text": HYBRID,
    "qwen3_5_moe_text": HYBRID,
    "recurrent_gemma": {"lru_width": 64, "attention_window_size": 21},
    "granite": {"attention_multiplier": 0.3, "residual_multiplier": 0.5, "logits_scaling": 2.0},
}


class NotSmall(Exception):
    """The architecture cannot be made small by these fields."""


# Sizes of what a model of several has beside its text model, as far as its config has such fields.
SENSES: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_heads": 2,
    "head_dim": 16,
    "out_hidden_size": 64,
    "image_size": 28,
    "patch_size": 14,
    "vision_output_dim": 64,
    "projector_input_dim": 64,
    "projector_output_dim": 64,
    "vocab_size": VOCAB,
}
# Published as models for images and text, of which the native decoder runs the one for text.
BESIDE_IMAGES = ("mistral3",)
MODEL_TYPES = tuple(sorted((*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *BESIDE_IMAGES)))


ALONE = ("gemma3n",)


def config_of(model_type: str) -> Any:
    kind = transformers.CONFIG_MAPPING[model_type]
    usual = kind().to_dict()
    known = usual.keys() | getattr(kind, "attribute_map", {}).keys()
    given = {name: value for name, value in FIELDS.items() if name in known}
    for part in kind.sub_configs:
        if isinstance(usual.get(part), dict):
            given[part] = part_of(usual[part], speaks=part == "text_config")
    if "head_dim" in known and "qk_rope_head_dim" not in known:
        given["head_dim"] = 16
    if "kv_lora_rank" in known:  # transformers makes keys and values for every head from a latent
        given["num_key_value_heads"] = FIELDS["num_attention_heads"]
    if usual.get("sliding_window"):
        given["sliding_window"] = 21
    kinds = usual.get("layer_types")
    if isinstance(kinds, list):
        if set(kinds) <= {"full_attention", "sliding_attention"} and len(set(kinds)) == 2:
            given["layer_types"] = ["sliding_attention", "full_attention", "sliding_attention"]
        else:
            given["layer_types"] = (kinds * 3)[:3]
    config = kind(**given | CHANGES.get(model_type, {}))
    if hasattr(config, "is_decoder"):
        config.is_decoder = True
    return config


def part_of(usual: dict[str, Any], *, speaks: bool) -> dict[str, Any]:
    """One of several models in a config. `speaks`: whether it is that for text."""
    model_type = usual["model_type"]
    if speaks or model_type in MODEL_TYPES:
        small: dict[str, Any] = config_of(model_type).to_dict()
        return small
    return {"model_type": model_type} | {name: SENSES[name] for name in SENSES if name in usual}


def make(model_type: str, folder: Path) -> Any:
    """Save a random model and a tokenizer to the folder, and return transformers' model."""
    config = config_of(model_type)
    alone = model_type in ALONE  # transformers lacks a package for the whole model
    config, whole = (config.text_config, config) if alone else (config, None)
    kind = (
        transformers.AutoModelForImageTextToText
        if model_type in (*BESIDE_IMAGES, "llama4", "qwen3_5", "qwen3_5_moe")
        else transformers.AutoModelForCausalLM
    )
    with torch.device("meta"):
        size = sum(each.numel() for each in kind.from_config(config).parameters())
    if size > MOST:
        raise NotSmall(f"it would have {size:,} parameters")
    torch.manual_seed(0)
    model = kind.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if name.endswith("A_log"):  # rates at which states decay: slow ones, so that these matter
                tensor.uniform_(-3.0, 0.0)
            elif tensor.dim() == 1 and tensor.is_floating_point():  # biases and norms start as constants
                tensor.uniform_(*((0.5, 1.5) if "norm" in name and "bias" not in name else (-0.3, 0.3)))
    model.save_pretrained(folder)
    if model.config.model_type != model_type:  # transformers runs only its text model
        config.save_pretrained(folder)
    if whole is not None:
        whole.save_pretrained(folder)
        tensors = load_file(folder / "model.safetensors")
        moved = {name.replace("model.", "model.language_model.", 1): each for name, each in tensors.items()}
        save_file(moved | {"model.vision_tower.weight": torch.zeros(1)}, folder / "model.safetensors")
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return model
