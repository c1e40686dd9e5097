"""The model families of the native decoder: each a short table of parts and names. Needs no torch."""

from dataclasses import replace
from importlib.metadata import entry_points

from engine.api.errors import BadInput
from engine.api.plugins import missing_members
from engine.models.kinds import (
    BesideAttention,
    Chunked,
    DeltaNet,
    Dense,
    DenseMultiplied,
    DenseRounded,
    Ends,
    EndsBySize,
    Grouped,
    Latent,
    Lengthened,
    Mamba,
    OnlyMamba,
    Routed,
    RoutedBiased,
    RoutedByGroup,
    RoutedClamped,
    RoutedIfAny,
    RoutedInputs,
    RoutedUngated,
    ShortConvolutions,
    Sloped,
    SlopedMpt,
    Ungated,
)
from engine.models.kinds.family import Arrangement, Family, NormKind, beside_images
from engine.models.kinds.mamba import all_states, by_index, by_pattern
from engine.models.kinds.names import (
    BAMBA,
    BLOOM,
    DEEPSEEK,
    EXPERTS,
    GLM,
    GLM4_MOE,
    GPT_OSS,
    GRANITE_EXPERTS,
    JOINED,
    LFM2,
    LINEAR,
    LLAMA4,
    MIXTRAL,
    MPT,
    MTP,
    MTP_LAST,
    NAMES,
    NEMOTRON_H,
    SANDWICHED,
    mamba,
    under,
)
from engine.models.kinds.rope import RopeKind
from engine.models.kinds.windows import (
    full_every,
    full_unrotated,
    given_window,
    none_rotated,
    one_window,
    one_window_if_used,
    rotated_if_named,
    unrotated,
    window_of_mistral,
    windows_by_layer,
    windows_of_first,
    windows_of_last,
    windows_where_unrotated,
)

__all__ = ["FAMILIES", "GROUP", "NAMES", "Arrangement", "Family", "NormKind", "named", "names", "register"]

GROUP = "minichat.families"  # entry points of packages that provide a family

BIAS = ("attention_bias", False)
PAIRS = ("rope_interleave", True)
QUERY = ("query_pre_attn_scalar", 256.0)
GELU = ("hidden_activation", "gelu_pytorch_tanh")
GEMMA = Family(
    attention=Grouped(bias=BIAS, head_dim=256),
    feed_forward=Dense(activation=("hidden_act", "gelu_pytorch_tanh")),
    norms="offset", ends=Ends(embed_by_width=True), tied=True, start_id=2, stop_id=1,
)  # fmt: skip
GEMMA3 = replace(
    GEMMA, names=SANDWICHED, arrangement="sandwich", feed_forward=Dense(activation=GELU),
    attention=Grouped(
        windows=full_every(6, "sliding_window_pattern"), bias=BIAS, qk_norm=True, head_dim=256,
        query_width=QUERY,
    ),
    rope=RopeKind(theta=1_000_000.0, local=True, local_theta=("rope_local_base_freq", 10_000.0)),
    ends=Ends(embed_by_width=True, logit_cap=("final_logit_softcapping", None)),
)  # fmt: skip
MISTRAL = Family(attention=Grouped(windows=one_window), feed_forward=Dense(), start_id=1, stop_id=2)
MISTRAL3 = replace(MISTRAL, attention=Lengthened(windows=window_of_mistral))
GLM4 = Family(
    attention=Grouped(bias=("attention_bias", True), out_biased=False, head_dim=128),
    feed_forward=Dense(), names=GLM, rope=RopeKind(partial=0.5, interleaved=True),
    ends=Ends(eps=("rms_norm_eps", 1.5625e-07)),
)  # fmt: skip
GLM4_EXPERTS = RoutedByGroup(normalized=("norm_topk_prob", True), biased=True, first=1)
OLMO2 = Family(
    attention=Grouped(bias=BIAS, norm_weights="wide"), feed_forward=Dense(),
    names=SANDWICHED, arrangement="post", ends=Ends(eps=("rms_norm_eps", 1e-5)), stop_id=50_279,
)  # fmt: skip
COHERE = Family(
    attention=Grouped(bias=BIAS, qk_norm=("use_qk_norm", False), norm_weights="own"), feed_forward=Dense(),
    arrangement="parallel", norms="layer", rope=RopeKind(theta=500_000.0, interleaved=True),
    ends=Ends(eps=("layer_norm_eps", 1e-5), logit_scale=("logit_scale", 0.0625)), tied=True,
    start_id=5, stop_id=255_001,
)  # fmt: skip
GRANITE = Family(
    attention=Grouped(bias=BIAS, scale=("attention_multiplier", 1.0)),
    feed_forward=Dense(bias=("mlp_bias", False)),
    ends=Ends(
        embed_scale=("embedding_multiplier", 1.0), residual_scale=("residual_multiplier", 1.0),
        logit_divisor=("logits_scaling", 1.0),
    ),
    start_id=1, stop_id=2,
)  # fmt: skip
GRANITE_SHARED = RoutedIfAny(
    count="num_local_experts", width="intermediate_size", normalized=True, shared="shared_intermediate_size",
    dense_width=False,
)  # fmt: skip
NEMOTRON_STATES = Mamba(
    kinds=by_pattern, heads=("mamba_num_heads", 128), groups=("n_groups", 8), dim="mamba_head_dim", width="",
    state=("ssm_state_size", 128), taps=("conv_kernel", 4), conv_bias=("use_conv_bias", True),
    bias=("use_bias", False), activation="mamba_hidden_act", shortest="time_step_min",
)  # fmt: skip
QWEN3_5 = Family(
    attention=Grouped(bias=BIAS, qk_norm=True, head_dim=256, gated=True), linear=DeltaNet(),
    feed_forward=Dense(), names=LINEAR, mtp=MTP, unread=("mtp.",), norms="offset",
    rope=RopeKind(partial=0.25),
)  # fmt: skip
QWEN3_5_EXPERTS = Routed(
    normalized=True, shared="shared_expert_intermediate_size", dense_width=False
)  # fmt: skip
LLAMA4_TEXT = Family(
    attention=Chunked(bias=BIAS, head_dim=128),
    feed_forward=RoutedInputs(
        count="num_local_experts", width="intermediate_size", shared="intermediate_size", dense_width=False
    ),
    dense=Dense(), names=LLAMA4, transposed=True, rope=RopeKind(theta=500_000.0, interleaved=True),
    ends=Ends(eps=("rms_norm_eps", 1e-5)), start_id=1, stop_id=2,
)  # fmt: skip
LFM2_FAMILY = Family(
    attention=Grouped(qk_norm=True), linear=ShortConvolutions(), feed_forward=DenseRounded(), names=LFM2,
    fields={"tie_embedding": "tie_word_embeddings", "block_ff_dim": "intermediate_size"},
    rope=RopeKind(theta=1_000_000.0), ends=Ends(eps=("norm_eps", 1e-5)), tied=True, start_id=1, stop_id=2,
)  # fmt: skip
COHERE2_WINDOWS = full_every(4, "sliding_window_pattern")

FAMILIES: dict[str, Family] = {
    "llama": Family(
        attention=Grouped(bias=BIAS), feed_forward=Dense(bias=("mlp_bias", False)), start_id=1, stop_id=2
    ),
    "llama4_text": LLAMA4_TEXT,
    "llama4": beside_images(LLAMA4_TEXT, "llama4_text"),
    "mistral": MISTRAL,
    "mistral3": beside_images(MISTRAL3, "mistral", "ministral3"),
    "ministral": replace(MISTRAL, attention=Grouped(windows=given_window)),
    "ministral3": MISTRAL3,
    "qwen2": Family(attention=Grouped(windows=windows_by_layer, qkv_bias=True), feed_forward=Dense()),
    "qwen3": Family(
        attention=Grouped(windows=windows_by_layer, bias=BIAS, qk_norm=True, head_dim=128),
        feed_forward=Dense(),
    ),
    "smollm3": Family(
        attention=Grouped(windows=windows_where_unrotated, unrotated=unrotated, bias=BIAS),
        feed_forward=Dense(bias=("mlp_bias", False)), rope=RopeKind(theta=2_000_000.0), tied=True,
        start_id=128_000, stop_id=128_001,
    ),
    "gemma": GEMMA,
    "gemma2": replace(
        GEMMA, names=SANDWICHED, arrangement="sandwich", feed_forward=Dense(activation=GELU),
        attention=Grouped(
            windows=full_every(2), bias=BIAS, head_dim=256, query_width=QUERY,
            softcap=("attn_logit_softcapping", 50.0),
        ),
        ends=Ends(embed_by_width=True, logit_cap=("final_logit_softcapping", 30.0)),
    ),
    "gemma3_text": GEMMA3,
    "gemma3": beside_images(
        GEMMA3, "gemma3_text",
        usual={
            "vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
            "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 131_072,
        },
    ),
    "phi3": Family(
        attention=Grouped(windows=given_window), feed_forward=Dense(), names=JOINED,
        rope=RopeKind(partial=1.0), ends=Ends(eps=("rms_norm_eps", 1e-5)), start_id=1, stop_id=32_000,
    ),
    "olmo2": OLMO2,
    "olmo3": replace(
        OLMO2, attention=Grouped(windows=full_every(4), bias=BIAS, norm_weights="wide"),
        rope=RopeKind(theta=500_000.0, local=True),
    ),
    "granite": GRANITE,
    "granitemoe": replace(
        GRANITE, names=GRANITE_EXPERTS,
        feed_forward=Routed(
            count="num_local_experts", width="intermediate_size", normalized=True, dense_width=False
        ),
    ),
    "granitemoeshared": replace(GRANITE, names=GRANITE_EXPERTS, feed_forward=GRANITE_SHARED),
    "granitemoehybrid": replace(
        GRANITE, names={**GRANITE_EXPERTS, **mamba("mamba")}, linear=Mamba(), dense=Dense(),
        attention=Grouped(bias=BIAS, scale=("attention_multiplier", 1.0), unrotated=rotated_if_named),
        feed_forward=GRANITE_SHARED,
    ),
    "bamba": Family(
        attention=Grouped(bias=BIAS), linear=Mamba(kinds=by_index), names=BAMBA,
        feed_forward=Dense(bias=("mlp_bias", False)), rope=RopeKind(partial=0.5),
        ends=Ends(eps=("rms_norm_eps", 1e-5)), start_id=1, stop_id=2,
    ),
    "falcon_h1": Family(
        attention=Grouped(bias=BIAS), linear=BesideAttention(), names=BAMBA,
        feed_forward=DenseMultiplied(bias=("mlp_bias", False)),
        ends=Ends(
            eps=("rms_norm_eps", 1e-5), embed_scale=("embedding_multiplier", 1.0),
            logit_scale=("lm_head_multiplier", 1.0),
        ),
        start_id=1, stop_id=2,
    ),
    "nemotron_h": Family(
        attention=Grouped(bias=BIAS, head_dim=128, unrotated=none_rotated), linear=NEMOTRON_STATES,
        feed_forward=RoutedUngated(biased=True, normalized=("norm_topk_prob", True)),
        dense=Ungated(activation=("mlp_hidden_act", "relu2")), names=NEMOTRON_H,
        unread=("mtp.",), arrangement="lone", ends=Ends(eps=("layer_norm_epsilon", 1e-5)),
        start_id=1, stop_id=2,
    ),
    "mamba2": Family(
        attention=OnlyMamba(
            kind=replace(
                NEMOTRON_STATES, kinds=all_states, heads=("num_heads", 128), dim="head_dim", width="expand",
                state=("state_size", 128), activation="hidden_act", shortest="",
            )
        ),
        feed_forward=None, names=NEMOTRON_H, arrangement="lone", context=1 << 20,
        ends=Ends(eps=("layer_norm_epsilon", 1e-5)), start_id=0, stop_id=2,
    ),
    "glm": GLM4,
    "glm4": replace(
        GLM4, arrangement="sandwich",
        names={
            **GLM, "attention.after": "post_self_attn_layernorm",
            "feed_forward.after": "post_mlp_layernorm",
        },
    ),
    "cohere": COHERE,
    "cohere2": replace(
        COHERE, rope=RopeKind(interleaved=True),
        attention=Grouped(
            windows=COHERE2_WINDOWS, unrotated=full_unrotated(COHERE2_WINDOWS), bias=BIAS, head_dim=128
        ),
    ),
    "starcoder2": Family(
        attention=Grouped(windows=given_window, bias=("use_bias", True)),
        feed_forward=Ungated(bias=("use_bias", True)),
        names={**NAMES, "feed_forward.up": "mlp.c_fc", "feed_forward.down": "mlp.c_proj"},
        norms="layer", norm_bias=True, ends=Ends(eps=("norm_epsilon", 1e-5)), tied=True,
        start_id=50_256, stop_id=50_256,
    ),
    "bloom": Family(
        attention=Sloped(), feed_forward=Ungated(ratio=4, bias=("bias", True)), names=BLOOM,
        fields={
            "n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_embed": "hidden_size",
            "seq_length": "max_position_embeddings",
        },
        root="transformer.", norms="layer", norm_bias=True, ends=Ends(eps=("layer_norm_epsilon", 1e-5)),
        context=2048, tied=True, start_id=1, stop_id=2,
    ),
    "mpt": Family(
        attention=SlopedMpt(), feed_forward=Ungated(ratio=4, activation=("hidden_act", "gelu")), names=MPT,
        fields={
            "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads", "d_model": "hidden_size",
            "max_seq_len": "max_position_embeddings",
        },
        norms="layer", ends=Ends(eps=("layer_norm_epsilon", 1e-5)), context=2048, tied=True,
    ),
    "mixtral": Family(
        attention=Grouped(windows=given_window), names=MIXTRAL,
        feed_forward=Routed(count="num_local_experts", width="intermediate_size", normalized=True),
        rope=RopeKind(theta=1_000_000.0), ends=Ends(eps=("rms_norm_eps", 1e-5)), start_id=1, stop_id=2,
    ),
    "qwen2_moe": Family(
        attention=Grouped(windows=windows_of_first, bias=("qkv_bias", True), out_biased=False),
        feed_forward=Routed(shared="shared_expert_intermediate_size", mixed=True), dense=Dense(),
        names=EXPERTS,
    ),
    "qwen3_moe": Family(
        attention=Grouped(windows=one_window_if_used, bias=BIAS, qk_norm=True),
        feed_forward=Routed(mixed=True), dense=Dense(), names=EXPERTS,
    ),
    "qwen3_next": replace(
        QWEN3_5, linear=DeltaNet(interleaved=True), dense=Dense(),
        feed_forward=Routed(
            normalized=("norm_topk_prob", True), shared="shared_expert_intermediate_size", mixed=True
        ),
    ),
    "qwen3_5": replace(
        QWEN3_5, inside="text_config", inner=("qwen3_5_text",), names=under("model.language_model", LINEAR),
        unread=("model.visual.", "mtp."),
    ),
    "qwen3_5_text": QWEN3_5,
    "qwen3_5_moe_text": replace(QWEN3_5, feed_forward=QWEN3_5_EXPERTS),
    "qwen3_5_moe": replace(
        QWEN3_5, inside="text_config", inner=("qwen3_5_moe_text",), feed_forward=QWEN3_5_EXPERTS,
        names=under("model.language_model", LINEAR), unread=("model.visual.", "mtp."),
    ),
    "lfm2": LFM2_FAMILY,
    "lfm2_moe": replace(
        LFM2_FAMILY, feed_forward=RoutedBiased(normalized=("norm_topk_prob", True)), dense=Dense()
    ),
    "olmoe": Family(
        attention=Grouped(bias=BIAS, norm_weights="wide"), feed_forward=Routed(width="intermediate_size"),
        names=EXPERTS, ends=Ends(eps=("rms_norm_eps", 1e-5)), stop_id=50_279,
    ),
    "deepseek_v2": Family(
        attention=Latent(), feed_forward=RoutedByGroup(), dense=Dense(), names=DEEPSEEK,
        rope=RopeKind(interleaved=True), start_id=1, stop_id=2,
    ),
    "deepseek_v3": Family(
        attention=Latent(), dense=Dense(), names=DEEPSEEK, rope=RopeKind(interleaved=PAIRS),
        feed_forward=RoutedByGroup(
            normalized=("norm_topk_prob", True), biased=True, groups=(8, 4), scaling=2.5, first=3
        ),
        mtp=MTP_LAST, start_id=0, stop_id=1,
    ),
    "glm4_moe_lite": Family(
        attention=Latent(query_rank=768, unrotated=192, value=256), feed_forward=GLM4_EXPERTS,
        dense=Dense(), names=DEEPSEEK, rope=RopeKind(interleaved=PAIRS),
        mtp=MTP_LAST, ends=Ends(eps=("rms_norm_eps", 1e-5)), start_id=0, stop_id=1,
    ),
    "youtu": Family(
        attention=Latent(), feed_forward=Dense(), names=DEEPSEEK, rope=RopeKind(interleaved=PAIRS), tied=True,
        start_id=128_000, stop_id=128_001,
    ),
    "minicpm3": Family(
        attention=Latent(rank=256, query_rank=768, unrotated=64, rotated=32, value=None),
        feed_forward=Dense(), names=DEEPSEEK, tied=True, start_id=1, stop_id=2,
        ends=EndsBySize(eps=("rms_norm_eps", 1e-5), embed_scale=("scale_emb", 12.0)),
    ),
    "glm4_moe": Family(
        attention=Grouped(bias=BIAS, out_biased=False, qk_norm=("use_qk_norm", False)),
        feed_forward=GLM4_EXPERTS, dense=Dense(), names=GLM4_MOE, mtp=MTP_LAST,
        rope=RopeKind(partial=0.5), ends=Ends(eps=("rms_norm_eps", 1e-5)),
    ),
    "dots1": Family(
        attention=Grouped(windows=windows_of_last, bias=BIAS, qk_norm=True),
        feed_forward=RoutedByGroup(normalized=("norm_topk_prob", False), biased=True), dense=Dense(),
        names=GLM4_MOE,
    ),
    "gpt_oss": Family(
        attention=Grouped(
            windows=full_every(2, window=128), bias=("attention_bias", True), head_dim=64, sinks=True
        ),
        feed_forward=RoutedClamped(
            count="num_local_experts", width="intermediate_size", normalized=True
        ),
        names=GPT_OSS,
        rope=RopeKind(theta=150_000.0), ends=Ends(eps=("rms_norm_eps", 1e-5)),
    ),
}  # fmt: skip


def register(name: str, family: Family) -> None:
    """Add the family of a model_type. Installed packages can use an entry point instead."""
    if (problem := missing_members(family, "attention", "feed_forward", "names")) is not None:
        raise BadInput(f"model family {name!r}: {problem}")
    FAMILIES[name] = family


def named(name: str) -> Family | None:
    """Return the family of a model_type. None: there is none, so transformers runs the model.

    Raises if the family's package cannot be used.
    """
    for point in entry_points(group=GROUP, name=name) if name not in FAMILIES else ():
        try:
            found = point.load()
        except (ImportError, AttributeError) as error:
            raise BadInput(f"model family {name!r}: it cannot be imported ({error})") from error
        register(name, found)
    return FAMILIES.get(name)


def names() -> list[str]:
    """Return all families, built-in ones first."""
    return list(dict.fromkeys((*FAMILIES, *sorted(point.name for point in entry_points(group=GROUP)))))
