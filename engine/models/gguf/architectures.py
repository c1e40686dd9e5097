"""The architectures of GGUF files whose families run natively, and how llama.cpp changed their tensors.

Reference: llama.cpp, convert_hf_to_gguf.py, and gguf-py/gguf/tensor_mapping.py for the names.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from engine.api.errors import UnsupportedModel
from engine.gguf.header import GgufFile

# The names in a GGUF file of what the families name (engine/models/families.py).
NAMES: Mapping[str, str] = {
    "embed": "token_embd",
    "norm": "output_norm",
    "head": "output",
    "attention.norm": "attn_norm",
    "attention.q": "attn_q",
    "attention.k": "attn_k",
    "attention.v": "attn_v",
    "attention.qkv": "attn_qkv",
    "attention.out": "attn_output",
    "attention.q_norm": "attn_q_norm",
    "attention.k_norm": "attn_k_norm",
    "attention.after": "post_attention_norm",
    "feed_forward.norm": "ffn_norm",
    "feed_forward.gate": "ffn_gate",
    "feed_forward.up": "ffn_up",
    "feed_forward.gate_up": "ffn_up",
    "feed_forward.down": "ffn_down",
    "feed_forward.after": "post_ffw_norm",
    "router": "ffn_gate_inp",
    "expert.gate": "ffn_gate_exps",
    "expert.up": "ffn_up_exps",
    "expert.down": "ffn_down_exps",
    "shared.gate": "ffn_gate_shexp",
    "shared.up": "ffn_up_shexp",
    "shared.down": "ffn_down_shexp",
    "shared.scale": "ffn_gate_inp_shexp",
}
OUTER = ("embed", "norm", "head")  # the names outside of blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """How a family's checkpoints become GGUF files."""

    family: str
    permuted: bool = False  # rows of queries and keys are reordered, for interleaved rotary positions
    offset_norms: bool = False  # norms are stored as 1 + weight
    settings: Mapping[str, str] = field(default_factory=dict)  # keys of its metadata, and of config.json
    fixed: Mapping[str, object] = field(default_factory=dict)  # what no metadata holds
    score_width: int = 0  # with this many layers, scores are scaled by the width of all heads, not of one


WINDOW = {"attention.sliding_window": "sliding_window"}
CAPS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
EXPERTS = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
SCALES = {
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "attention.scale": "attention_multiplier",
    "logit_scale": "logits_scaling",
}
LLAMA = Architecture(family="llama", permuted=True)
GEMMA = Architecture(family="gemma", offset_norms=True)

ARCHITECTURES = {
    "llama": LLAMA,
    "qwen2": Architecture(family="qwen2"),
    "qwen3": Architecture(family="qwen3"),
    "smollm3": Architecture(family="smollm3", permuted=True),
    "granite": Architecture(family="granite", permuted=True, settings=SCALES),
    "gemma": GEMMA,
    "gemma2": replace(GEMMA, family="gemma2", settings={**WINDOW, **CAPS}, score_width=46),
    "gemma3": replace(GEMMA, family="gemma3_text", settings={**WINDOW, **CAPS}, score_width=62),
    "phi3": Architecture(family="phi3", settings=WINDOW),
    "starcoder2": Architecture(family="starcoder2"),
    "olmo2": Architecture(family="olmo2"),
    "glm4": Architecture(family="glm4"),
    "command-r": Architecture(family="cohere", settings={"logit_scale": "logit_scale"}),
    "cohere2": Architecture(family="cohere2", settings={"logit_scale": "logit_scale", **WINDOW}),
    "qwen2moe": Architecture(family="qwen2_moe", settings=EXPERTS, fixed={"norm_topk_prob": False}),
    "qwen3moe": Architecture(family="qwen3_moe", settings=EXPERTS, fixed={"norm_topk_prob": True}),
    "olmoe": Architecture(family="olmoe", settings=EXPERTS, fixed={"norm_topk_prob": False}),
}
MIXTRAL = Architecture(family="mixtral", permuted=True, settings=EXPERTS)


def architecture_of(file: GgufFile) -> tuple[str, Architecture]:
    """Return the architecture and its name in the metadata. Raises for others."""
    name = file.text("general.architecture")
    found = ARCHITECTURES.get(name or "")
    if name is None or found is None:
        raise UnsupportedModel(
            f"{file.path}: general.architecture is {name!r:.80}; of GGUF files, "
            f"{', '.join(ARCHITECTURES)} can run"
        )
    if name == "llama" and file.whole("llama.expert_count"):
        found = MIXTRAL
    if name == "olmo2" and file.whole("olmo2.attention.sliding_window"):
        raise UnsupportedModel(
            f"{file.path}: olmo2.attention.sliding_window is set; OLMo 3 is not read from GGUF"
        )
    return name, found
