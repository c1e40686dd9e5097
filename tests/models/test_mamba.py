"""Mamba-2 hybrids: what their config.json may say, and what is refused."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.api.cache_spec import CacheSpec
from engine.api.config import DecoderConfig, ModelPlace
from engine.api.errors import BadCheckpoint, BadInput, UnsupportedModel
from engine.models.config_json import read_config
from engine.models.decoder import Decoder, block
from engine.models.loader import possible_ranks
from engine.models.registry import load_model
from tests.models.families import GRANITE_HYBRID, LONE, MAMBA, MAMBA2, NEMOTRON, SHAPE, reference
from tests.models.tiny import plain_attend

PATTERN = "M-*EM"  # the same as LONE
FAMILIES: dict[str, dict[str, Any]] = {
    "granitemoehybrid": GRANITE_HYBRID,
    "bamba": MAMBA | {"attn_layer_indices": [1]},
    "mamba2": MAMBA2,
    "nemotron_h": NEMOTRON | {"layers_block_type": LONE, "n_shared_experts": 1},
}


def config(folder: Path, family: str, **changes: Any) -> DecoderConfig:
    given = SHAPE | {"model_type": family, "num_experts_per_tok": 2} | FAMILIES[family] | changes
    (folder / "config.json").write_text(json.dumps(given))
    return read_config(folder)


def test_layers_may_be_named_in_several_ways(tmp_path: Path) -> None:
    newer = config(tmp_path, "nemotron_h")
    assert newer == config(tmp_path, "nemotron_h", layers_block_type=None, hybrid_override_pattern=PATTERN)
    old = ["mamba", "mlp", "attention", "moe", "mamba"]
    assert newer == config(tmp_path, "nemotron_h", layers_block_type=old)
    assert newer.layers[1] == newer.layers[3] == CacheSpec.of_nothing()
    assert [bool(each.state) for each in newer.layers] == [True, False, False, False, True]
    granite = config(tmp_path, "granitemoehybrid")
    old = ["mamba", "attention", "mamba"]
    assert granite == config(tmp_path, "granitemoehybrid", layer_types=None, layers_block_type=old)


@pytest.mark.parametrize("value", [[0.0, math.inf], [0, {"__float__": "Infinity"}], None])
def test_step_sizes_without_a_limit(tmp_path: Path, value: Any) -> None:
    assert config(tmp_path, "bamba", time_step_limit=value).settings["steps"] == (0.0, math.inf)


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("granitemoehybrid", "layer_types", ["linear_attention"] * 3),
        ("granitemoehybrid", "layer_types", ["linear_attention", "full_attention", [1]]),
        ("granitemoehybrid", "layer_types", ["linear_attention", "full_attention"]),
        ("granitemoehybrid", "mamba_d_head", 15),
        ("granitemoehybrid", "mamba_d_conv", 17),
        ("granitemoehybrid", "mamba_expand", 1 << 30),
        ("granitemoehybrid", "hidden_act", "gelu"),
        ("granitemoehybrid", "position_embedding_type", "alibi"),
        ("granitemoehybrid", "shared_intermediate_size", 0),
        ("bamba", "attn_layer_indices", []),
        ("bamba", "attn_layer_indices", [True]),
        ("bamba", "attn_layer_indices", [3]),
        ("bamba", "time_step_limit", [2.0, 1.0]),
        ("bamba", "time_step_limit", [0.0, {"__float__": "NaN"}]),
        ("bamba", "time_step_limit", [0.0]),
        ("bamba", "mamba_conv_bias", 1),
        ("mamba2", "head_dim", 15),
        ("mamba2", "num_hidden_layers", 0),
        ("nemotron_h", "layers_block_type", []),
        ("nemotron_h", "layers_block_type", ["linear_attention", "conv", "full_attention"]),
        ("nemotron_h", "layers_block_type", ["linear_attention", "mlp"]),
        ("nemotron_h", "mamba_num_heads", 7),
        ("nemotron_h", "ssm_state_size", -1),
        ("nemotron_h", "ssm_state_size", 257),
        ("nemotron_h", "time_step_min", -1.0),
        ("nemotron_h", "mamba_hidden_act", "relu"),
        ("nemotron_h", "mlp_hidden_act", "tanh"),
        ("nemotron_h", "moe_latent_size", 16),
        ("nemotron_h", "mlp_bias", True),  # also for experts, which have none
    ],
)
def test_bad_values_are_named(tmp_path: Path, family: str, key: str, value: Any) -> None:
    with pytest.raises((BadCheckpoint, UnsupportedModel), match=f"{key} is "):
        config(tmp_path, family, **{key: value})


def test_a_pattern_with_other_signs_is_named(tmp_path: Path) -> None:
    changes = {"layers_block_type": None, "hybrid_override_pattern": "M-*X"}
    with pytest.raises(BadCheckpoint, match=r"hybrid_override_pattern is .* M [*] - E"):
        config(tmp_path, "nemotron_h", **changes)


def test_ranks_share_whole_groups_or_the_only_one(tmp_path: Path) -> None:
    two, one = (config(tmp_path, "bamba", mamba_n_groups=count) for count in (2, 1))
    assert possible_ranks(two, 4) == [1, 2]
    assert possible_ranks(one, 4) == [1, 2, 4]
    with torch.device("meta"), pytest.raises(BadInput, match="2 groups of a state space cannot be split"):
        block(two, 0, torch.float32, 4)


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": True, "use_bias": True}])
def test_a_model_of_states_alone_equals_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    """After each layer; transformers keeps the last one's output normed, too."""
    theirs = reference("Mamba2", MAMBA2 | changes, tmp_path)
    ours = load_model(ModelPlace("tiny", tmp_path))
    assert isinstance(ours, Decoder)
    assert all(each.state is not None for each in ours.config.layers) and ours.config.rotary_dim == 0
    ids = torch.randint(3, 96, (150,), generator=torch.Generator().manual_seed(1))
    positions, attend = torch.arange(len(ids)), plain_attend(ours.config.layers)
    with torch.inference_mode():
        expected = theirs(ids[None], output_hidden_states=True)
        for layers, hidden in enumerate(expected.hidden_states[:-1], 1):
            reached, normed = ours(ids, positions, attend, layers=layers), theirs.backbone.norm_f(hidden[0])
            torch.testing.assert_close(reached, normed, atol=1e-4, rtol=1e-4)
        logits = ours.logits(ours(ids, positions, attend))
        torch.testing.assert_close(logits, expected.logits[0], atol=1e-4, rtol=1e-4)


def test_a_context_that_is_not_given_is_long(tmp_path: Path) -> None:
    given = {"max_position_embeddings": None}
    assert config(tmp_path, "mamba2", **given).max_context == 1 << 20


@pytest.mark.parametrize("scheme", ["int8", "int4-32"])
def test_quantized_weights_stay_near(tmp_path: Path, scheme: str) -> None:
    """Also of the products of a state space; its convolution, decays and norms stay exact."""
    reference("NemotronH", NEMOTRON | {"layers_block_type": LONE}, tmp_path)
    exact, ours = (load_model(ModelPlace("tiny", tmp_path), quantization=name) for name in ("none", scheme))
    assert isinstance(ours, Decoder) and isinstance(exact, Decoder)
    mixers = [model.blocks[0].mixer for model in (exact, ours)]
    kinds = [[type(getattr(each, name)).__name__ for name in ("mixed", "out")] for each in mixers]
    assert kinds[0] != kinds[1] and len(set(kinds[1])) == 1
    assert torch.equal(*(each.conv for each in mixers))  # type: ignore[union-attr, arg-type]
    ids, attend = torch.arange(3, 40), plain_attend(exact.config.layers)
    with torch.inference_mode():
        expected, found = (
            model.logits(model.forward(ids, torch.arange(len(ids)), attend)) for model in (exact, ours)
        )
    error = (found - expected).norm() / expected.norm()
    assert 0 < error < {"int8": 0.05, "int4-32": 0.5}[scheme]
