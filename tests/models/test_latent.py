"""DeepSeek's parts: configuration, routing, quantization, and the layers of a file that are not read."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.api.config import LatentSpec, ModelPlace
from engine.api.errors import BadCheckpoint, UnsupportedModel
from engine.models.config_json import read_config
from engine.models.decoder import Decoder
from engine.models.layers.moe import GroupChoice
from engine.models.registry import load_model
from tests.models.families import DEEPSEEK, LATENT, reference
from tests.models.test_moe import logits_of, numbers
from tests.models.tiny import write_config
from tests.quant.packers import Fp8, Gptq, write

V3 = {"model_type": "deepseek_v3", **DEEPSEEK}
PACKED = ("q_a_proj.weight", "q_b_proj.weight", "kv_a_proj_with_mqa.weight", "kv_b_proj.weight")
EVEN = {
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}


def loaded(folder: Path, scheme: str = "none") -> Decoder:
    model = load_model(ModelPlace("tiny", folder), quantization=scheme)
    assert isinstance(model, Decoder)
    return model


def test_a_token_caches_its_latent(tmp_path: Path) -> None:
    config = read_config(write_config(tmp_path, **V3))
    spec = config.layers[0]
    assert (spec.heads, spec.kv_heads, spec.key_dim, spec.value_dim) == (4, 1, 22, 16)
    assert spec.latent and spec.rotary_dim == 6 and spec.scale == 16**-0.5
    assert config.latent == LatentSpec(rank=16, rotated=6, unrotated=10, value=12, query_rank=20)
    real = {key: None for key in DEEPSEEK if key in ("kv_lora_rank", "qk_rope_head_dim")}
    usual = read_config(write_config(tmp_path, **V3 | real)).layers[0]
    assert (usual.key_dim, usual.value_dim) == (576, 512)


@pytest.mark.parametrize(("kind", "factor"), [("yarn", (0.1 * 0.8 * math.log(40) + 1) ** 2), ("default", 1)])
def test_a_longer_context_sharpens_the_scores(kind: str, factor: float, tmp_path: Path) -> None:
    scaling = {"type": kind, "factor": 40, "mscale": 0.8, "mscale_all_dim": 0.8}
    config = read_config(write_config(tmp_path, **V3, rope_scaling=scaling))
    assert config.layers[0].scale == pytest.approx(factor * 16**-0.5)
    assert config.rope.attention_factor == 1.0


def test_the_settings_of_deepseek_v2_lite(tmp_path: Path) -> None:
    sizes = {"kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
    experts = {"n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "n_group": 1}
    ways = {"topk_method": "greedy", "scoring_func": "softmax", "norm_topk_prob": False, "moe_layer_freq": 1}
    yarn = {"type": "yarn", "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707, "beta_fast": 32}
    scaling = {"rope_scaling": yarn | {"original_max_position_embeddings": 4096}, "v_head_dim": 128}
    more = {"moe_intermediate_size": 1408, "first_k_dense_replace": 1, "topk_group": 1, **scaling}
    config = read_config(write_config(tmp_path, model_type="deepseek_v2", **sizes, **experts, **ways, **more))
    assert config.latent == LatentSpec(rank=512, rotated=64, unrotated=128, value=128)
    assert config.layers[0].scale == pytest.approx(0.114721387)  # as its own code computes it
    assert config.dense == (0,) and config.experts is not None
    assert (config.experts.groups, config.experts.shared, config.experts.scaling) == (1, 2816, 1.0)


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("deepseek_v3", "attention_bias", True),
        ("deepseek_v3", "topk_method", "greedy"),
        ("deepseek_v3", "scoring_func", "softmax"),
        ("deepseek_v3", "moe_layer_freq", 2),
        ("deepseek_v3", "n_group", 4),
        ("deepseek_v3", "n_group", 6),
        ("deepseek_v3", "topk_group", 4),
        ("deepseek_v3", "num_experts_per_tok", 5),
        ("deepseek_v3", "kv_lora_rank", 0),
        ("deepseek_v3", "qk_rope_head_dim", 7),
        ("deepseek_v3", "n_shared_experts", None),
        ("deepseek_v3", "num_nextn_predict_layers", -1),
        ("deepseek_v3", "rope_interleave", 1),
        ("deepseek_v2", "norm_topk_prob", True),
        ("deepseek_v2", "topk_method", "noaux_tc"),
        ("glm4_moe_lite", "mlp_layer_types", ["dense"]),
        ("glm4_moe_lite", "mlp_layer_types", ["dense", "mixed"]),
    ],
)
def test_bad_values_are_named(family: str, key: str, value: Any, tmp_path: Path) -> None:
    named = {"num_experts_per_tok": "topk_group", "qk_rope_head_dim": "partial_rotary_factor"}.get(key, key)
    with pytest.raises((BadCheckpoint, UnsupportedModel), match=named):
        read_config(write_config(tmp_path, **V3 | {"model_type": family, key: value}))


def grouped(part: GroupChoice, scores: Tensor, best: int) -> list[set[int]]:
    """Each token's experts, in plain Python."""
    spec, chosen = part.spec, []
    size = spec.count // spec.groups
    for token in scores.tolist():
        members = [range(at * size, (at + 1) * size) for at in range(spec.groups)]
        totals = [sum(sorted((token[i] for i in group), reverse=True)[:best]) for group in members]
        open_groups = sorted(range(spec.groups), key=lambda at: -totals[at])[: spec.chosen_groups]
        able = [i for at in open_groups for i in members[at]]
        chosen.append(set(sorted(able, key=lambda i: -token[i])[: spec.chosen]))
    return chosen


@pytest.mark.parametrize(("family", "best"), [("DeepseekV2", 1), ("DeepseekV3", 2)])
def test_experts_are_chosen_by_group(family: str, best: int, tmp_path: Path) -> None:
    method = {"topk_method": "group_limited_greedy"} if best == 1 else {}
    theirs = reference(family, DEEPSEEK | method, tmp_path)
    part, x = loaded(tmp_path).blocks[1].feed_forward, numbers(50)
    assert isinstance(part, GroupChoice) and part.spec.groups == 3
    gate = theirs.model.layers[1].mlp.gate
    with torch.inference_mode():
        weights, experts = part.routed(x)
        _, their_weights, their_experts = gate(x)
        scores = part.router(x)
        scores = scores.softmax(-1) if best == 1 else scores.sigmoid() + gate.e_score_correction_bias
    assert [set(row) for row in experts.tolist()] == grouped(part, scores, best)
    dense = [
        torch.zeros(50, 6).scatter(1, *each) for each in ((experts, weights), (their_experts, their_weights))
    ]
    torch.testing.assert_close(*dense)


@pytest.mark.parametrize("packer", [Gptq(), Fp8(), Fp8("block")], ids=["gptq", "fp8", "fp8-blocks"])
def test_stored_quantized_weights_keep_their_numbers(packer: Any, tmp_path: Path) -> None:
    """The projections of latents are read as plain numbers."""
    reference("DeepseekV3", DEEPSEEK | EVEN | {"moe_intermediate_size": 32}, tmp_path)
    tensors, config = (
        load_file(tmp_path / "model.safetensors"),
        json.loads((tmp_path / "config.json").read_text()),
    )
    made = write(tensors, config, tmp_path / "packed", packer, also=PACKED)
    stored, plain = loaded(made.quantized), loaded(made.plain)
    assert torch.equal(stored.blocks[0].attention.kv_up, plain.blocks[0].attention.kv_up)
    torch.testing.assert_close(logits_of(stored), logits_of(plain), atol=3e-2, rtol=3e-2)
    assert (logits_of(plain) - logits_of(loaded(tmp_path))).norm() > 0.01


@pytest.mark.parametrize(("scheme", "most"), [("int8", 0.05), ("int4-32", 0.5)])
def test_quantized_weights_stay_near(scheme: str, most: float, tmp_path: Path) -> None:
    """Without experts, since rounding may choose others."""
    reference("Youtu", LATENT, tmp_path)
    exact, model = loaded(tmp_path), loaded(tmp_path, scheme)
    wanted = logits_of(exact)
    assert 0 < (logits_of(model) - wanted).norm() < most * wanted.norm()


def test_layers_that_predict_further_tokens_are_not_read(tmp_path: Path) -> None:
    """Their number is in config.json; any other tensor is still refused."""
    reference("DeepseekV3", DEEPSEEK, tmp_path)
    wanted, file = logits_of(loaded(tmp_path)), tmp_path / "model.safetensors"
    tensors, values = load_file(file), json.loads((tmp_path / "config.json").read_text())
    save_file(tensors | {"model.layers.3.eh_proj.weight": torch.ones(2, 2)}, file)
    (tmp_path / "config.json").write_text(json.dumps(values | {"num_nextn_predict_layers": 1}))
    assert torch.equal(logits_of(loaded(tmp_path)), wanted)
    (tmp_path / "config.json").write_text(json.dumps(values | {"num_nextn_predict_layers": 0}))
    with pytest.raises(BadCheckpoint, match=r"model\.layers\.3\.eh_proj\.weight is not part of this model"):
        loaded(tmp_path)
