"""The native decoder against transformers: small random models of every family, layer by layer."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.api.config import DTypeName, ModelPlace
from engine.models.config_json import read_config
from engine.models.decoder import Decoder
from engine.models.layers.norm import Norm
from engine.models.registry import load_model
from tests.cases import soak
from tests.models.families import (
    CAPPED,
    DEEPSEEK,
    EXPERTS,
    FALCON_H1,
    GEMMA3_ROPE,
    GPT_OSS,
    GRANITE_HYBRID,
    GROUPED,
    GROWING,
    LATENT,
    LFM2,
    LFM2_EXPERTS,
    LINEAR,
    LLAMA3,
    LLAMA4,
    LLAMAS,
    LONE,
    LONG,
    MAMBA,
    MIXED,
    MPT,
    MSCALE,
    NEMOTRON,
    OLMO3_ROPE,
    ONE_FREQUENCY,
    PADDED,
    SCALES,
    SLIDING,
    YARN,
    reference,
)
from tests.models.tiny import plain_attend

CASES: list[tuple[str, str, dict[str, Any]]] = [
    *(("Llama", name, changes) for name, changes in LLAMAS.items()),
    ("Mistral", "window", {"sliding_window": 5}),
    ("Mistral", "no-window", {"sliding_window": None, "head_dim": 24}),
    ("Qwen2", "plain", {"tie_word_embeddings": True}),
    ("Qwen2", "some-slide", SLIDING | {"max_window_layers": 1}),
    ("Qwen3", "plain", {"head_dim": 24}),
    ("Qwen3", "biases", {"head_dim": 16, "attention_bias": True}),
    (
        "Qwen3",
        "named-layers",
        SLIDING
        | {"head_dim": 16, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    ("SmolLM3", "unrotated", {"no_rope_layer_interval": 2, "pad_token_id": 0}),
    ("SmolLM3", "slides", SLIDING | {"no_rope_layers": [1, 0, 0], "pad_token_id": 0, "mlp_bias": True}),
    ("Ministral", "mixed", MIXED | {"head_dim": 24}),
    ("Ministral3", "growing", PADDED | GROWING),
    ("Gemma", "plain", {"head_dim": 24}),
    ("Gemma", "exact-gelu", {"head_dim": 24, "hidden_act": "gelu", "attention_bias": True}),
    ("Gemma2", "caps", CAPPED | {"head_dim": 24, "sliding_window": 5}),
    ("Gemma2", "no-caps", dict.fromkeys(CAPPED, None) | {"query_pre_attn_scalar": 24, "head_dim": 24}),
    ("Gemma3Text", "two-bases", {"head_dim": 24, "rope_parameters": GEMMA3_ROPE} | MIXED),
    ("Gemma3Text", "caps", CAPPED | MIXED | {"head_dim": 16}),
    ("Phi3", "plain", PADDED),
    ("Phi3", "window", PADDED | {"sliding_window": 5, "num_key_value_heads": 1}),
    ("Phi3", "longrope", PADDED | LONG),
    ("Phi3", "partial", PADDED | {"rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.75}}),
    ("Olmo2", "plain", {}),
    ("Olmo2", "biases", {"attention_bias": True, "num_key_value_heads": 4}),
    ("Olmo3", "mixed", MIXED | {"rope_parameters": OLMO3_ROPE}),
    ("Granite", "scales", SCALES),
    ("Granite", "biases", SCALES | {"attention_bias": True, "mlp_bias": True}),
    ("Glm", "plain", PADDED | {"head_dim": 24}),
    ("Glm4", "plain", PADDED | {"head_dim": 24}),
    ("Glm4", "no-bias", PADDED | {"head_dim": 16, "attention_bias": False}),
    ("Cohere", "plain", {"logit_scale": 0.3}),
    ("Cohere", "norms", {"use_qk_norm": True, "attention_bias": True}),
    ("Cohere2", "mixed", MIXED | {"head_dim": 24}),
    ("Starcoder2", "plain", {}),
    ("Starcoder2", "window", {"sliding_window": 5, "use_bias": False}),
    ("Mixtral", "plain", EXPERTS | {"num_experts_per_tok": 3, "head_dim": 16}),
    ("Mixtral", "window", EXPERTS | {"sliding_window": 5, "head_dim": 24}),
    ("Qwen3Moe", "plain", EXPERTS | {"head_dim": 24}),
    ("Qwen3Moe", "normalized", EXPERTS | {"norm_topk_prob": True, "mlp_only_layers": [1]}),
    ("Qwen3Moe", "window", EXPERTS | SLIDING | {"decoder_sparse_step": 2}),
    ("Qwen2Moe", "shared", EXPERTS),
    ("Qwen2Moe", "some-slide", EXPERTS | SLIDING | {"qkv_bias": False, "norm_topk_prob": True}),
    ("Llama4Text", "plain", LLAMA4),
    ("Llama4Text", "one-frequency", LLAMA4 | {"rope_parameters": LLAMA3 | ONE_FREQUENCY}),
    ("Llama4Text", "some-dense", LLAMA4 | {"interleave_moe_layer_step": 2, "num_experts_per_tok": 2}),
    (
        "Llama4Text",
        "no-norm",
        LLAMA4
        | {"use_qk_norm": False, "attn_temperature_tuning": False, "attention_bias": True}
        | {"no_rope_layers": [1, 0, 1], "moe_layers": [1], "attention_chunk_size": 500},
    ),
    ("Bloom", "plain", {}),
    ("Bloom", "twelve-heads", {"num_attention_heads": 12, "hidden_size": 96}),
    ("Mpt", "plain", MPT),
    (
        "Mpt",
        "clipped",
        MPT
        | {
            "hidden_size": 96,
            "num_attention_heads": 6,
            "attn_config": {"clip_qkv": 0.7, "softmax_scale": 0.3},
        },
    ),
    ("Lfm2", "plain", LFM2),
    (
        "Lfm2",
        "given-width",
        LFM2
        | {"layer_types": None, "full_attn_idxs": [1, 2], "conv_L_cache": 4, "conv_bias": True}
        | {"block_auto_adjust_ff_dim": False, "tie_embedding": False},
    ),
    ("Lfm2Moe", "plain", LFM2_EXPERTS),
    ("Lfm2Moe", "not-normalized", LFM2_EXPERTS | {"norm_topk_prob": False, "num_dense_layers": 0}),
    ("FalconH1", "norm", FALCON_H1),
    ("FalconH1", "norm-before-gate", FALCON_H1 | {"mamba_norm_before_gate": True, "projectors_bias": True}),
    (
        "FalconH1",
        "no-norm",
        MAMBA
        | {"mamba_d_ssm": None, "mamba_d_head": "auto", "mamba_n_groups": 1, "mamba_conv_bias": False}
        | {"mamba_proj_bias": True, "attention_bias": True, "mlp_bias": True, "key_multiplier": 0.7},
    ),
    ("GptOss", "plain", GPT_OSS),
    ("GptOss", "yarn", GPT_OSS | {"rope_parameters": YARN | {"truncate": False}, "swiglu_limit": 0.5}),
    ("GptOss", "no-bias", GPT_OSS | {"attention_bias": False, "layer_types": MIXED["layer_types"]}),
    ("DeepseekV2", "plain", DEEPSEEK | {"num_experts_per_tok": 3}),
    ("DeepseekV2", "groups", DEEPSEEK | {"topk_method": "group_limited_greedy", "q_lora_rank": None}),
    ("DeepseekV3", "plain", DEEPSEEK),
    ("DeepseekV3", "yarn", DEEPSEEK | {"rope_parameters": MSCALE, "norm_topk_prob": False}),
    ("DeepseekV3", "halves", DEEPSEEK | {"rope_interleave": False, "q_lora_rank": None}),
    ("Glm4MoeLite", "plain", LATENT | GROUPED | {"mlp_layer_types": ["sparse", "dense", "sparse"]}),
    ("Glm4MoeLite", "tied", LATENT | GROUPED | {"tie_word_embeddings": True}),
    ("Youtu", "plain", LATENT),
    ("MiniCPM3", "plain", LATENT | {"v_head_dim": None}),
    ("MiniCPM3", "no-scales", LATENT | {"scale_depth": None, "dim_model_base": None, "scale_emb": 2}),
    ("Glm4Moe", "plain", GROUPED | {"head_dim": 24}),
    (
        "Glm4Moe",
        "norms",
        GROUPED | {"use_qk_norm": True, "attention_bias": True, "partial_rotary_factor": 1.0},
    ),
    ("Dots1", "plain", GROUPED | {"head_dim": 24}),
    ("Dots1", "window", GROUPED | {"sliding_window": 5, "max_window_layers": 1, "first_k_dense_replace": 2}),
    ("Qwen3Next", "plain", EXPERTS | LINEAR),
    ("Qwen3Next", "some-dense", EXPERTS | LINEAR | {"mlp_only_layers": [1], "attention_bias": True}),
    ("Qwen3Next", "by-interval", EXPERTS | LINEAR | {"layer_types": None, "full_attention_interval": 2}),
    ("Qwen3_5Text", "one-key-head", LINEAR | {"linear_num_key_heads": 1}),
    ("Qwen3_5Text", "as-many-key-heads", LINEAR | {"linear_num_key_heads": 4, "tie_word_embeddings": True}),
    ("Qwen3_5MoeText", "plain", EXPERTS | LINEAR),
    ("GraniteMoe", "plain", SCALES | {"num_local_experts": 4}),
    ("GraniteMoeShared", "plain", SCALES | {"num_local_experts": 4, "shared_intermediate_size": 40}),
    ("GraniteMoeHybrid", "plain", GRANITE_HYBRID),
    (
        "GraniteMoeHybrid",
        "dense",
        GRANITE_HYBRID
        | {"num_local_experts": 0, "position_embedding_type": "rope", "attention_bias": True}
        | {"mamba_n_groups": 1, "mamba_proj_bias": True, "time_step_limit": (1.2, 2.0)},
    ),
    ("Bamba", "plain", MAMBA | {"attn_layer_indices": [1]}),
    ("Bamba", "no-bias", MAMBA | {"attn_layer_indices": [0, 2], "mamba_conv_bias": False, "mlp_bias": True}),
    ("NemotronH", "experts", NEMOTRON | {"layers_block_type": LONE}),
    (
        "NemotronH",
        "dense",
        NEMOTRON
        | {"layers_block_type": ["mlp", "full_attention", "linear_attention"], "mlp_bias": True}
        | {"use_bias": True, "use_conv_bias": False, "time_step_min": 1.3},
    ),
    ("Olmoe", "plain", EXPERTS),
    ("Olmoe", "normalized", EXPERTS | {"norm_topk_prob": True, "attention_bias": True}),
]


# Their parts are in other cases.
ALIKE = {
    ("FalconH1", "no-norm"), ("Qwen3_5Text", "one-key-head"), ("Qwen3Next", "by-interval"),
    ("GraniteMoeHybrid", "dense"), ("NemotronH", "dense"), ("Bamba", "no-bias"), ("Mpt", "plain"),
    ("Glm4MoeLite", "tied"), ("Lfm2Moe", "not-normalized"), ("Qwen3Moe", "plain"), ("Bloom", "plain"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "name", "changes"),
    [each if each[:2] not in ALIKE else soak(each)[0] for each in CASES],
    ids=[f"{case[0]}-{case[1]}" for case in CASES],
)
def test_every_layer_equals_transformers(
    family: str, name: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    theirs = reference(family, changes, tmp_path)
    ours = load_model(ModelPlace("tiny", tmp_path))
    config = ours.config
    assert isinstance(ours, Decoder)
    ids = torch.randint(3, 96, (150,), generator=torch.Generator().manual_seed(1))
    attend = plain_attend(config.layers, sinks=ours.sinks)
    last_norm = next(
        each
        for name, each in getattr(theirs, "model", theirs.base_model).named_children()
        if name in ("norm", "norm_f", "ln_f", "final_layernorm", "embedding_norm")
    )
    with torch.inference_mode():
        expected = theirs(ids[None], output_hidden_states=True)
        for depth, hidden in enumerate(expected.hidden_states):
            normed = hidden[0] if depth == len(config.layers) else last_norm(hidden[0])
            reached = ours(ids, torch.arange(len(ids)), attend, layers=depth)
            torch.testing.assert_close(reached, normed, atol=1e-4, rtol=1e-4)
        logits = ours.logits(ours(ids, torch.arange(len(ids)), attend))
        torch.testing.assert_close(logits, expected.logits[0], atol=1e-4, rtol=1e-4)
    assert (config.start_id, config.stop_ids) == (1, (2,))


@pytest.mark.parametrize("changes", LLAMAS.values(), ids=LLAMAS)
def test_older_configs_are_read_the_same(changes: dict[str, Any], tmp_path: Path) -> None:
    reference("Llama", changes, tmp_path)
    newer = read_config(tmp_path)
    file = tmp_path / "config.json"
    values = json.loads(file.read_text())
    rope = values.pop("rope_parameters")
    values["torch_dtype"] = values.pop("dtype")
    values["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type")
    values["rope_scaling"] = {"type": kind, **rope} if kind != "default" else None
    file.write_text(json.dumps(values))
    assert read_config(tmp_path) == newer


def test_concatenated_rows_do_not_attend_to_each_other(tmp_path: Path) -> None:
    reference("Qwen3", {"head_dim": 16}, tmp_path)
    model = load_model(ModelPlace("tiny", tmp_path))
    config = model.config
    rows = [torch.arange(3, 3 + n) for n in (7, 1, 12)]
    with torch.inference_mode():
        alone = [model.forward(row, torch.arange(len(row)), plain_attend(config.layers)) for row in rows]
        packed = model.forward(
            torch.cat(rows),
            torch.cat([torch.arange(len(row)) for row in rows]),
            plain_attend(config.layers, [len(row) for row in rows]),
        )
    torch.testing.assert_close(packed, torch.cat(alone), atol=1e-5, rtol=1e-5)


def test_the_norm_rounds_as_transformers_does() -> None:
    import transformers

    theirs = transformers.models.llama.modeling_llama.LlamaRMSNorm(64, eps=1e-5).bfloat16()
    ours = Norm(64, eps=1e-5, dtype=torch.bfloat16)
    weight = torch.randn(64, generator=torch.Generator().manual_seed(2)).bfloat16()
    with torch.inference_mode():
        ours.weight.copy_(weight)
        theirs.weight.copy_(weight)
        x = torch.randn(33, 64, generator=torch.Generator().manual_seed(3)).bfloat16()
        assert torch.equal(ours(x), theirs(x))


def test_longrope_has_other_factors_if_a_longer_context_is_asked_for(tmp_path: Path) -> None:
    """The keys in a cache cannot change when a text grows, so the context decides once."""
    theirs = reference("Phi3", PADDED | LONG, tmp_path)
    usual, longer = (load_model(ModelPlace("tiny", tmp_path), max_context=n) for n in (None, 256))
    assert (usual.config.max_context, longer.config.max_context) == (200, 256)
    ids = torch.randint(3, 96, (250,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = theirs(ids[None]).logits[0]
        found = longer.logits(longer.forward(ids, torch.arange(250), plain_attend(longer.config.layers)))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["Gemma2", "Phi3", "Olmo2", "Granite", "Glm4", "Cohere", "Starcoder2"])
@pytest.mark.parametrize("scheme", ["int8", *soak("int4-32")])
def test_quantized_weights_stay_near(family: str, scheme: str, tmp_path: Path) -> None:
    changes = next(changes for name, _, changes in CASES if name == family)
    reference(family, changes, tmp_path)
    exact, ours = (load_model(ModelPlace("tiny", tmp_path), quantization=name) for name in ("none", scheme))
    ids, attend = torch.arange(3, 40), plain_attend(exact.config.layers)
    with torch.inference_mode():
        expected, found = (
            model.logits(model.forward(ids, torch.arange(len(ids)), attend)) for model in (exact, ours)
        )
    error = (found - expected).norm() / expected.norm()
    assert 0 < error < {"int8": 0.05, "int4-32": 0.5}[scheme]


def test_half_precision_stays_near_transformers(tmp_path: Path) -> None:
    theirs = reference("Llama", {}, tmp_path).bfloat16()
    ours = load_model(ModelPlace("tiny", tmp_path), dtype="bfloat16")
    config = ours.config
    ids = torch.arange(3, 40)
    with torch.inference_mode():
        expected = theirs(ids[None]).logits[0].float()
        logits = ours.logits(ours.forward(ids, torch.arange(len(ids)), plain_attend(config.layers)))
    assert logits.dtype == torch.float32
    assert (logits - expected).norm() < 0.02 * expected.norm()


def test_a_trained_model_equals_transformers(shared: Path) -> None:
    import transformers

    folder = shared / "models" / "stories260K"
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    ours = load_model(ModelPlace("stories260K", folder))
    config = ours.config
    ids = torch.randint(3, 512, (300,), generator=torch.Generator().manual_seed(4))
    with torch.inference_mode():
        logits = ours.logits(ours.forward(ids, torch.arange(300), plain_attend(config.layers)))
        torch.testing.assert_close(logits, theirs(ids[None]).logits[0], atol=1e-4, rtol=1e-4)


@pytest.mark.cuda
@pytest.mark.parametrize(("dtype", "allowed"), [("float32", 1e-3), ("bfloat16", 0.02)])
def test_a_gpu_gives_the_same_logits(dtype: DTypeName, allowed: float, tmp_path: Path) -> None:
    theirs = reference("Qwen3", {"head_dim": 16}, tmp_path)
    model = load_model(ModelPlace("tiny", tmp_path), device="cuda", dtype=dtype)
    config = model.config
    ids = torch.arange(3, 40)
    with torch.inference_mode():
        expected = theirs(ids[None]).logits[0]
        with torch.device("cuda"):
            hidden = model.forward(ids.cuda(), torch.arange(len(ids)), plain_attend(config.layers))
        logits = model.logits(hidden).cpu()
    assert (logits - expected).norm() < allowed * expected.norm()
