"""The names that parts use, and their names in checkpoints, by family."""

from collections.abc import Mapping

NAMES: Mapping[str, str] = {
    "embed": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "block": "model.layers.{}",
    "attention.norm": "input_layernorm",
    "attention.q": "self_attn.q_proj",
    "attention.k": "self_attn.k_proj",
    "attention.v": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
    "feed_forward.norm": "post_attention_layernorm",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
}


SANDWICHED: Mapping[str, str] = {
    **NAMES,
    "attention.after": "post_attention_layernorm",
    "feed_forward.norm": "pre_feedforward_layernorm",
    "feed_forward.after": "post_feedforward_layernorm",
}
JOINED: Mapping[str, str] = {
    **NAMES,
    "attention.qkv": "self_attn.qkv_proj",
    "feed_forward.gate_up": "mlp.gate_up_proj",
}
EXPERTS: Mapping[str, str] = {
    **NAMES,
    "router": "mlp.gate",
    "expert.gate": "mlp.experts.{}.gate_proj",
    "expert.up": "mlp.experts.{}.up_proj",
    "expert.down": "mlp.experts.{}.down_proj",
    "shared.gate": "mlp.shared_expert.gate_proj",
    "shared.up": "mlp.shared_expert.up_proj",
    "shared.down": "mlp.shared_expert.down_proj",
    "shared.scale": "mlp.shared_expert_gate",
}
DEEPSEEK: Mapping[str, str] = {
    **EXPERTS,
    "attention.q_down": "self_attn.q_a_proj",
    "attention.q_norm": "self_attn.q_a_layernorm",
    "attention.q_up": "self_attn.q_b_proj",
    "attention.kv_down": "self_attn.kv_a_proj_with_mqa",
    "attention.latent_norm": "self_attn.kv_a_layernorm",
    "attention.kv_up": "self_attn.kv_b_proj.weight",
    "router.bias": "mlp.gate.e_score_correction_bias",
    "shared.gate": "mlp.shared_experts.gate_proj",
    "shared.up": "mlp.shared_experts.up_proj",
    "shared.down": "mlp.shared_experts.down_proj",
}
GLM4_MOE: Mapping[str, str] = {**DEEPSEEK, "attention.q_norm": NAMES["attention.q_norm"]}
# The four tensors of inputs that Qwen3.5 has, and the two of Qwen3-Next.
LINEAR: Mapping[str, str] = {
    **EXPERTS,
    "linear.qkv": "linear_attn.in_proj_qkv",
    "linear.gate": "linear_attn.in_proj_z",
    "linear.beta": "linear_attn.in_proj_b",
    "linear.rate": "linear_attn.in_proj_a",
    "linear.qkv_gate": "linear_attn.in_proj_qkvz",
    "linear.beta_rate": "linear_attn.in_proj_ba",
    "linear.conv": "linear_attn.conv1d.weight",
    "linear.decay": "linear_attn.A_log",
    "linear.decay_bias": "linear_attn.dt_bias",
    "linear.out_norm": "linear_attn.norm",
    "linear.out": "linear_attn.out_proj",
}


def mamba(part: str) -> Mapping[str, str]:
    """Return the names of a Mamba-2 layer's tensors."""
    names = {
        "in": "in_proj", "conv": "conv1d.weight", "conv_bias": "conv1d.bias", "decay": "A_log",
        "step_bias": "dt_bias", "skip": "D", "out_norm": "norm.weight", "out": "out_proj",
    }  # fmt: skip
    return {f"linear.{key}": f"{part}.{name}" for key, name in names.items()}


def under(root: str, names: Mapping[str, str]) -> Mapping[str, str]:
    """Return the names of a text model that is one of several in a checkpoint."""
    return {key: name.replace("model.", f"{root}.", 1) for key, name in names.items()}


def beside(root: str, names: Mapping[str, str]) -> Mapping[str, str]:
    """The same names, with the head included."""
    return {**under(f"{root}.model", names), "head": f"{root}.lm_head"}


MIXTRAL: Mapping[str, str] = {
    **NAMES,
    "router": "block_sparse_moe.gate",
    "expert.gate": "block_sparse_moe.experts.{}.w1",
    "expert.up": "block_sparse_moe.experts.{}.w3",
    "expert.down": "block_sparse_moe.experts.{}.w2",
}
LLAMA4: Mapping[str, str] = {
    **NAMES,
    "feed_forward.gate": "feed_forward.gate_proj",
    "feed_forward.up": "feed_forward.up_proj",
    "feed_forward.down": "feed_forward.down_proj",
    "router": "feed_forward.router",
    "expert.gate": "feed_forward.experts.{}.gate_proj",
    "expert.up": "feed_forward.experts.{}.up_proj",
    "expert.down": "feed_forward.experts.{}.down_proj",
    "shared.gate": "feed_forward.shared_expert.gate_proj",
    "shared.up": "feed_forward.shared_expert.up_proj",
    "shared.down": "feed_forward.shared_expert.down_proj",
}
BLOOM: Mapping[str, str] = {
    "embed": "transformer.word_embeddings",
    "embed_norm": "transformer.word_embeddings_layernorm",
    "norm": "transformer.ln_f",
    "head": "lm_head",
    "block": "transformer.h.{}",
    "attention.norm": "input_layernorm",
    "attention.qkv": "self_attention.query_key_value",
    "attention.out": "self_attention.dense",
    "feed_forward.norm": "post_attention_layernorm",
    "feed_forward.up": "mlp.dense_h_to_4h",
    "feed_forward.down": "mlp.dense_4h_to_h",
}
MPT: Mapping[str, str] = {
    "embed": "transformer.wte",
    "norm": "transformer.norm_f",
    "head": "lm_head",
    "block": "transformer.blocks.{}",
    "attention.norm": "norm_1",
    "attention.qkv": "attn.Wqkv",
    "attention.out": "attn.out_proj",
    "feed_forward.norm": "norm_2",
    "feed_forward.up": "ffn.up_proj",
    "feed_forward.down": "ffn.down_proj",
}
LFM2: Mapping[str, str] = {
    **NAMES,
    "norm": "model.embedding_norm",
    "attention.norm": "operator_norm",
    "attention.out": "self_attn.out_proj",
    "attention.q_norm": "self_attn.q_layernorm",
    "attention.k_norm": "self_attn.k_layernorm",
    "linear.in": "conv.in_proj",
    "linear.conv": "conv.conv.weight",
    "linear.conv_bias": "conv.conv.bias",
    "linear.out": "conv.out_proj",
    "feed_forward.norm": "ffn_norm",
    "feed_forward.gate": "feed_forward.w1",
    "feed_forward.up": "feed_forward.w3",
    "feed_forward.down": "feed_forward.w2",
    "router": "feed_forward.gate",
    "router.bias": "feed_forward.expert_bias",
    "expert.gate": "feed_forward.experts.{}.w1",
    "expert.up": "feed_forward.experts.{}.w3",
    "expert.down": "feed_forward.experts.{}.w2",
}
GPT_OSS: Mapping[str, str] = {
    **NAMES,
    "attention.sinks": "self_attn.sinks",
    "router": "mlp.router",
    "experts.gate_up": "mlp.experts.gate_up_proj",
    "experts.down": "mlp.experts.down_proj",
}
GRANITE_EXPERTS: Mapping[str, str] = {
    **NAMES,
    "feed_forward.gate_up": "shared_mlp.input_linear",
    "feed_forward.down": "shared_mlp.output_linear",
    "router": "block_sparse_moe.router.layer",
    "expert.gate": "block_sparse_moe.experts.{}.gate_proj",
    "expert.up": "block_sparse_moe.experts.{}.up_proj",
    "expert.down": "block_sparse_moe.experts.{}.down_proj",
    "shared.gate_up": "shared_mlp.input_linear",
    "shared.down": "shared_mlp.output_linear",
}
BAMBA: Mapping[str, str] = {
    **NAMES,
    **mamba("mamba"),
    "norm": "model.final_layernorm",
    "feed_forward.norm": "pre_ff_layernorm",
    "feed_forward.gate": "feed_forward.gate_proj",
    "feed_forward.up": "feed_forward.up_proj",
    "feed_forward.down": "feed_forward.down_proj",
}
NEMOTRON_H: Mapping[str, str] = {
    **{key: name.replace("self_attn.", "mixer.").replace("mlp.", "mixer.") for key, name in DEEPSEEK.items()},
    **mamba("mixer"),
    "embed": "backbone.embeddings",
    "norm": "backbone.norm_f",
    "block": "backbone.layers.{}",
    "attention.norm": "norm",
    "feed_forward.norm": "norm",
}
GLM: Mapping[str, str] = {**NAMES, "feed_forward.gate_up": "mlp.gate_up_proj"}

# Heads for multi-token prediction: one more layer, and what joins a token's embedding with a hidden state.
# `embed` and `head` are copies of the model's own in the checkpoint.
MTP: Mapping[str, str] = {
    "block": "mtp.layers.0",
    "embedding_norm": "mtp.pre_fc_norm_embedding",
    "hidden_norm": "mtp.pre_fc_norm_hidden",
    "join": "mtp.fc",
    "norm": "mtp.norm",
}
MTP_LAST: Mapping[str, str] = {
    "block": "model.layers.{}",
    "embedding_norm": "model.layers.{}.enorm",
    "hidden_norm": "model.layers.{}.hnorm",
    "join": "model.layers.{}.eh_proj",
    "norm": "model.layers.{}.shared_head.norm",
    "embed": "model.layers.{}.embed_tokens",
    "head": "model.layers.{}.shared_head.head",
}
