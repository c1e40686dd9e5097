"""Small random models of families, from transformers, and the sizes that tests share."""

from pathlib import Path
from typing import Any

import torch

SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,  # wide enough to expose a wrong layer
    "bos_token_id": 1,
    "eos_token_id": 2,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
ONE_FREQUENCY = {"low_freq_factor": 1.0, "high_freq_factor": 1.0}  # as in Llama 4: nothing is between the two
SLIDING = {"use_sliding_window": True, "sliding_window": 5}
LLAMAS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "one-kv-head": {"num_key_value_heads": 1},
    "as-many-kv-heads": {"num_key_value_heads": 4},
    "head-of-80": {"head_dim": 80},
    "head-of-8": {"head_dim": 8},
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    "llama3": {"rope_parameters": LLAMA3},
    "yarn": {"rope_parameters": YARN},
    "yarn-factor": {"rope_parameters": YARN | {"attention_factor": 1.5, "beta_fast": 16, "beta_slow": 2}},
    "yarn-mscale": {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 1.2}},
    "yarn-unrounded": {"rope_parameters": YARN | {"truncate": False}},
}
GROWING = {"rope_parameters": YARN | {"original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.5}}
MIXED = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
GEMMA3_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
    "full_attention": {"rope_type": "linear", "rope_theta": 50000.0, "factor": 8.0},
}
OLMO3_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": YARN,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.3, 1.2, 1.5, 1.6, 1.7, 2.0],
    "long_factor": [4.0 + n for n in range(8)],
    "original_max_position_embeddings": 200,
}
LONG = {"rope_parameters": LONGROPE, "original_max_position_embeddings": 200}
SCALES = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.3,
    "logits_scaling": 5.0,
}
CAPPED = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, "query_pre_attn_scalar": 7}
EXPERTS = {
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
}
GPT_OSS = {"num_local_experts": 5, "num_experts_per_tok": 2, "head_dim": 24, "sliding_window": 5}
MPT = {"max_seq_len": 256}
LFM2 = {"layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 16, "pad_token_id": 0}
LFM2_EXPERTS = {
    "layer_types": LFM2["layer_types"],
    "num_dense_layers": 1,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "routed_scaling_factor": 1.7,
    "pad_token_id": 0,
}
PADDED = {"pad_token_id": 0}
LLAMA4 = {
    "num_local_experts": 5,
    "intermediate_size_mlp": 112,
    "head_dim": 24,
    "attention_chunk_size": 21,
    "no_rope_layer_interval": 2,
    "floor_scale": 30,
    "pad_token_id": 0,
}
LATENT = {
    "q_lora_rank": 20,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6,
    "v_head_dim": 12,
    "num_key_value_heads": 4,
}
GROUPED = {
    "n_routed_experts": 6,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_group": 3,
    "topk_group": 2,
    "routed_scaling_factor": 1.7,
}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 3,
    "head_dim": 24,
    "initializer_range": 0.1,  # norms of small outputs make rounding errors large
}
# Granite 4 and Bamba, and Nemotron-H, name the same sizes differently.
MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 12,
    "mamba_d_conv": 3,
    "initializer_range": 0.1,
}
GRANITE_HYBRID = MAMBA | {
    **SCALES,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "num_local_experts": 4,
    "shared_intermediate_size": 40,
}
NEMOTRON = {
    "mamba_num_heads": 8,
    "mamba_head_dim": 12,
    "n_groups": 2,
    "ssm_state_size": 16,
    "conv_kernel": 3,
    "head_dim": 24,
    "n_routed_experts": 6,
    "n_group": 3,
    "topk_group": 2,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 40,
    "routed_scaling_factor": 1.7,
    "initializer_range": 0.1,
}
MAMBA2 = {"num_heads": 8, "head_dim": 16, "n_groups": 2, "state_size": 12, "initializer_range": 0.1}
FALCON_H1 = MAMBA | {
    "mamba_d_ssm": 128,
    "mamba_rms_norm": True,
    "mamba_norm_before_gate": False,
    "embedding_multiplier": 3.0,
    "lm_head_multiplier": 0.3,
    "key_multiplier": 0.7,
    "attention_in_multiplier": 1.2,
    "attention_out_multiplier": 0.6,
    "ssm_in_multiplier": 0.8,
    "ssm_out_multiplier": 1.3,
    "ssm_multipliers": [0.9, 1.1, 0.7, 1.3, 0.8],
    "mlp_multipliers": [0.9, 1.2],
}
LONE = ["linear_attention", "mlp", "full_attention", "moe", "linear_attention"]
DEEPSEEK = LATENT | GROUPED | {"first_k_dense_replace": 1}
MSCALE = YARN | {"mscale": 0.7, "mscale_all_dim": 1.2}


def reference(family: str, changes: dict[str, Any], folder: Path) -> Any:
    """Save a transformers model with random tensors to the folder, and return it."""
    import transformers  # seconds, which every test process would spend

    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SHAPE | changes)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if name.endswith("A_log"):  # slow decays, so that states matter
                tensor.uniform_(-3.0, 0.0)
            elif tensor.dim() == 1:  # biases and norms start as constants
                tensor.uniform_(0.5, 1.5)
        for name, tensor in model.named_buffers():
            if name.endswith(("e_score_correction_bias", "expert_bias")):
                tensor.uniform_(-0.3, 0.3)
    model.save_pretrained(folder)
    return model
