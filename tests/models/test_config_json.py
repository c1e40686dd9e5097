"""Reading config.json: every value is either understood or refused by name."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.api.config import DecoderConfig
from engine.api.errors import BadCheckpoint, UnsupportedModel
from engine.models.config_json import decoder_config, read_config
from engine.models.families import FAMILIES
from engine.models.fields import Fields
from engine.models.rope import frequencies
from tests.models.tiny import CONFIG, write_config

NOWHERE = Path("model/config.json")


def config(generation: dict[str, Any] | None = None, /, **changes: Any) -> DecoderConfig:
    values = {key: value for key, value in (CONFIG | changes).items() if value is not ...}
    return decoder_config(Fields(NOWHERE, values), Fields(NOWHERE, generation or {}))


def test_head_dim_is_derived_if_missing() -> None:
    assert config().layers[0].key_dim == 8
    assert config(head_dim=None).layers[0].key_dim == 8
    assert config(head_dim=80).layers[0].key_dim == 80
    assert config(num_key_value_heads=None).layers[0].kv_heads == 4


def test_sliding_windows_by_family() -> None:
    def windows(**changes: Any) -> list[int | None]:
        return [layer.window for layer in config(**changes).layers]

    sliding = {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 16}
    assert windows(model_type="mistral", sliding_window=16) == [16, 16]
    assert windows(model_type="mistral", sliding_window=None) == [None, None]
    assert windows(model_type="mistral", max_position_embeddings=8192) == [4096, 4096]
    assert windows(**sliding | {"use_sliding_window": False}) == [None, None]
    assert windows(**sliding, max_window_layers=1) == [None, 16]
    assert windows(**sliding, layer_types=["sliding_attention", "full_attention"]) == [16, None]
    assert windows(**sliding | {"sliding_window": 128}, max_window_layers=0) == [None, None]  # as wide as all


def test_chunks_of_attention() -> None:
    def chunks(**changes: Any) -> list[int | None]:
        found = config(**EXPERTS | {"model_type": "llama4_text", "attention_chunk_size": 16} | changes)
        assert all(layer.window is None for layer in found.layers)
        return [layer.chunk for layer in found.layers]

    assert chunks() == [16, 16]
    assert chunks(no_rope_layers=[]) == [16, 16]  # as published: the interval says which
    assert chunks(no_rope_layer_interval=2) == chunks(no_rope_layers=[1, 0]) == [16, None]
    assert chunks(layer_types=["full_attention", "chunked_attention"]) == [None, 16]
    assert config(**EXPERTS | {"model_type": "llama4_text", "attn_temperature_tuning": 4}).settings["growth"]
    assert chunks(attention_chunk_size=None) == chunks(attention_chunk_size=128) == [None, None]


def test_slopes_are_those_of_each_family() -> None:
    def slopes(**changes: Any) -> list[float]:
        (first, *rest) = config(**{"num_key_value_heads": None, "hidden_size": 48} | changes).layers
        assert all(each == first for each in rest) and first.window is None
        return list(first.slopes)

    assert slopes(model_type="bloom") == [2**-2, 2**-4, 2**-6, 2**-8]
    assert slopes(model_type="bloom", num_attention_heads=6) == [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]
    assert slopes(model_type="mpt", num_attention_heads=6) == [2**-n for n in (2, 4, 6, 8, 1, 3)]
    assert slopes(model_type="mpt", attn_config={"alibi_bias_max": 4}) == [2**-n for n in (1, 2, 3, 4)]


def test_a_familys_own_names_of_fields() -> None:
    own = {"n_layer": 3, "n_head": 2, "n_embed": 48, "seq_length": 512}
    values = {key: value for key, value in CONFIG.items() if not key.startswith(("num_", "hidden", "max_"))}
    found = decoder_config(Fields(NOWHERE, values | own | {"model_type": "bloom"}), Fields(NOWHERE, {}))
    assert (len(found.layers), found.layers[0].heads, found.hidden, found.max_context) == (3, 2, 48, 512)


def test_stop_ids() -> None:
    assert config().stop_ids == (2,)  # the family's default
    assert config(eos_token_id=None).stop_ids == ()
    assert config(eos_token_id=[5, 5, 6]).stop_ids == (5, 6)
    assert config({"eos_token_id": [7, 8]}, eos_token_id=5).stop_ids == (7, 8)
    assert config(eos_token_id=96).stop_ids == ()
    assert config(bos_token_id=96).start_id is None
    assert config(bos_token_id=None).start_id is None
    assert config({"bos_token_id": 9}, model_type="qwen2").start_id == 9


REFUSED = [
    ("model_type", "mamba"),
    ("architectures", ["LlamaForSequenceClassification"]),
    ("hidden_act", "gelu"),
    ("dtype", "int8"),
    ("partial_rotary_factor", 0.5),
    ("use_bidirectional_attention", True),
    ("clip_qkv", 8.0),
]


@pytest.mark.parametrize(("key", "value"), REFUSED)
def test_an_unsupported_value_is_named(key: str, value: Any) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        config(**{key: value})
    assert str(caught.value).startswith(f"{NOWHERE}: {key} is {json.dumps(value)}; ")


def test_the_method_of_quantization_is_named() -> None:
    with pytest.raises(UnsupportedModel, match=r'quantization_config.quant_method is "aqlm"; .* gptq, awq'):
        config(quantization_config={"quant_method": "aqlm"})


@pytest.mark.parametrize("kind", ["ntk", "mrope"])
@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_unknown_rotary_kinds_are_named(kind: str, key: str) -> None:
    with pytest.raises(UnsupportedModel, match=f'rope_scaling.{key} is "{kind}"'):
        config(rope_scaling={key: kind, "factor": 2.0})


SCALED = {"short_factor": [1.0, 1.5, 2, 3], "long_factor": [2, 4, 6, 8.0]}


@pytest.mark.parametrize("kind", ["longrope", "su", "yarn"])
def test_longrope_has_two_lists_of_factors(kind: str) -> None:
    """Without a longer context asked for, the model is as trained, up to the original context."""
    read = config(rope_scaling=SCALED | {"type": kind}, original_max_position_embeddings=64)
    assert (read.max_context, read.usual_context) == (128, 64)
    rope = read.rope
    assert (rope.short_factors, rope.long_factors) == ((1.0, 1.5, 2.0, 3.0), (2.0, 4.0, 6.0, 8.0))
    assert rope.attention_factor == pytest.approx(math.sqrt(1 + math.log(2) / math.log(64)))
    short, long = frequencies(rope, 8, 64), frequencies(rope, 8, 65)
    assert (short / long).tolist() == pytest.approx([2.0, 4 / 1.5, 3.0, 8 / 3])


@pytest.mark.parametrize(
    "factors",
    [
        {"short_factor": [1.0, 2.0]},
        {"long_factor": []},
        {"long_factor": [1, 2, 3, "x"]},
        {"short_factor": [0] * 4},
    ],
)
def test_bad_longrope_factors_are_named(factors: dict[str, Any]) -> None:
    with pytest.raises((BadCheckpoint, UnsupportedModel), match=r"rope_scaling.*(short|long)_factor"):
        config(rope_scaling=SCALED | {"type": "longrope"} | factors)


def test_rotary_positions_that_differ_by_layer_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="rope_parameters"):
        config(rope_parameters={"full_attention": {"rope_type": "default"}})


def test_sliding_layers_may_have_their_own_base() -> None:
    gemma: dict[str, Any] = {"model_type": "gemma3_text", "sliding_window": 16, "head_dim": 8}
    older = config(
        **gemma, rope_theta=1e6, rope_local_base_freq=5e3, rope_scaling={"type": "linear", "factor": 8}
    )
    newer = config(
        **gemma,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8},
        },
    )
    assert older == newer and older.local == (0, 1)
    assert (older.rope.theta, older.rope.factor) == (1e6, 8)
    assert older.local_rope is not None and (older.local_rope.theta, older.local_rope.kind) == (
        5e3,
        "default",
    )


def test_layers_of_other_kinds_are_refused() -> None:
    changes = {"model_type": "qwen3", "use_sliding_window": True, "layer_types": ["linear_attention"] * 2}
    with pytest.raises(UnsupportedModel, match="layer_types"):
        config(**changes)


EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
NEEDED = {"qwen2_moe": EXPERTS, "llama4_text": EXPERTS, "falcon_h1": {"mamba_n_heads": 4}}
HOSTILE: dict[str, list[tuple[str, Any]]] = {
    "gemma2": [
        ("attn_logit_softcapping", -1.0),
        ("final_logit_softcapping", "30"),
        ("query_pre_attn_scalar", 0),
        ("hidden_activation", "tanhshrink"),
        ("sliding_window", None),
        ("sliding_window", 0),
        ("layer_types", ["sliding_attention"]),
        ("layer_types", ["full_attention", "chunked_attention"]),
    ],
    "gemma3_text": [
        ("rope_local_base_freq", 0.5),
        ("sliding_window_pattern", 0),
        ("rope_parameters", {"full_attention": {}, "sliding_attention": 3}),
    ],
    "phi3": [("partial_rotary_factor", 0.2), ("partial_rotary_factor", 1.5), ("partial_rotary_factor", True)],
    "granite": [("residual_multiplier", math.inf), ("logits_scaling", 0), ("attention_multiplier", [1])],
    "cohere": [("logit_scale", 0), ("use_qk_norm", 1), ("layer_norm_eps", 2.0)],
    "qwen2_moe": [
        ("num_experts_per_tok", 5),
        ("num_experts", 1 << 20),
        ("moe_intermediate_size", 0),
        ("shared_expert_intermediate_size", None),
        ("norm_topk_prob", "yes"),
        ("decoder_sparse_step", 0),
        ("mlp_only_layers", ["0"]),
        ("qkv_bias", 1),
    ],
    "llama4_text": [
        ("attention_chunk_size", 0),
        ("layer_types", ["full_attention"]),
        ("layer_types", ["full_attention", "sliding_attention"]),
        ("no_rope_layers", [1]),
        ("floor_scale", 0),
        ("attn_scale", -1),
        ("use_qk_norm", "yes"),
        ("moe_layers", [True]),
        ("interleave_moe_layer_step", 0),
    ],
    "lfm2": [
        ("layer_types", ["conv", "conv"]),
        ("layer_types", ["conv", "sliding_attention"]),
        ("full_attn_idxs", []),
        ("conv_L_cache", 1),
        ("conv_bias", 1),
        ("block_multiple_of", 0),
        ("block_ffn_dim_multiplier", 0),
        ("tie_embedding", "yes"),
    ],
    "falcon_h1": [
        ("ssm_multipliers", [1.0] * 4),
        ("ssm_multipliers", [1.0, 1.0, 1.0, 1.0, "1"]),
        ("mlp_multipliers", [0, 1]),
        ("mamba_rms_norm", 1),
        ("key_multiplier", 0),
    ],
    "bloom": [("apply_residual_connection_post_layernorm", True), ("num_attention_heads", 5)],
    "mpt": [
        ("no_bias", False),
        ("logit_scale", "inv_sqrt_d_model"),
        ("attn_config", {"alibi": False}),
        ("attn_config", {"qk_ln": True}),
        ("attn_config", {"attn_type": "multiquery_attention"}),
        ("attn_config", {"alibi_bias_max": 0}),
        ("attn_config", [1]),
    ],
    "starcoder2": [("use_bias", "yes"), ("norm_epsilon", -1), ("hidden_act", 3)],
}


@pytest.mark.parametrize(
    ("family", "key", "value"), [(family, *each) for family, cases in HOSTILE.items() for each in cases]
)
def test_bad_values_of_a_family_are_named(family: str, key: str, value: Any) -> None:
    with pytest.raises((BadCheckpoint, UnsupportedModel), match=f"^{NOWHERE}: .*{key.split('.')[0]}"):
        config(**NEEDED.get(family, {}) | {"model_type": family, key: value})


BROKEN = [
    ("hidden_size", ...),
    ("hidden_size", "64"),
    ("hidden_size", True),
    ("vocab_size", -1),
    ("vocab_size", 10**400),
    ("num_hidden_layers", 10**6),
    ("num_key_value_heads", 3),
    ("num_attention_heads", 5),
    ("head_dim", 7),
    ("rms_norm_eps", 0),
    ("rms_norm_eps", math.nan),
    ("rope_theta", math.inf),
    ("rope_scaling", [1]),
    ("tie_word_embeddings", "yes"),
    ("eos_token_id", "</s>"),
    ("model_type", 3),
]


@pytest.mark.parametrize(("key", "value"), BROKEN)
def test_broken_values_are_named(key: str, value: Any) -> None:
    with pytest.raises(BadCheckpoint, match=f"^{NOWHERE}: "):
        config(**{key: value})


@pytest.mark.parametrize("text", ["", "[1, 2]", '{"a": ', "\x00", "[" * 5000])
def test_a_malformed_config_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(BadCheckpoint, match=r"config\.json"):
        read_config(tmp_path)


def test_a_broken_generation_config_is_named(tmp_path: Path) -> None:
    write_config(tmp_path)
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(BadCheckpoint, match=r"generation_config\.json"):
        read_config(tmp_path)


KEYS = [
    *CONFIG,
    *("torch_dtype", "head_dim", "hidden_act", "attention_bias", "mlp_bias", "tie_word_embeddings"),
    *("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "sliding_window"),
    *("use_sliding_window", "max_window_layers", "layer_types", "no_rope_layers", "no_rope_layer_interval"),
    *("bos_token_id", "eos_token_id", "quantization_config", "original_max_position_embeddings"),
    *("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar", "hidden_activation"),
    *("sliding_window_pattern", "rope_local_base_freq", "logit_scale", "layer_norm_eps", "norm_epsilon"),
    *("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling", "use_bias"),
    *("mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv", "mamba_expand"),
    *("attn_layer_indices", "time_step_limit", "shared_intermediate_size", "position_embedding_type"),
]
ROPE_KEYS = [
    *("rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor", "truncate"),
    *("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim"),
    *("original_max_position_embeddings", "short_factor", "long_factor", "partial_rotary_factor"),
]
WORDS = st.sampled_from(
    [
        "default",
        "linear",
        "llama3",
        "yarn",
        "longrope",
        "silu",
        "auto",
        "full_attention",
        "float16",
        *FAMILIES,
    ]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(0, 300)
    | st.floats()
    | st.text(max_size=5)
    | WORDS
)
ROPES = st.dictionaries(st.sampled_from(ROPE_KEYS), SCALARS, max_size=8)
VALUES = SCALARS | st.lists(SCALARS, max_size=3) | ROPES


@given(
    st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4), st.dictionaries(st.sampled_from(KEYS), VALUES)
)
def test_any_json_is_read_or_refused(changes: dict[str, Any], generation: dict[str, Any]) -> None:
    try:
        read = config(generation, **changes)
    except (UnsupportedModel, BadCheckpoint):
        return
    assert len(read.layers) == (CONFIG | changes)["num_hidden_layers"]


@given(st.sampled_from(["linear", "llama3", "yarn", "longrope"]), ROPES)
@example("linear", {"factor": 2.3e-115})
def test_accepted_rotary_settings_give_finite_frequencies(kind: str, values: dict[str, Any]) -> None:
    try:
        read = config(rope_scaling=values | {"rope_type": kind})
    except (UnsupportedModel, BadCheckpoint):
        return
    assert frequencies(read.rope, int(8 * read.rope.share)).isfinite().all()
    assert math.isfinite(read.rope.attention_factor)
