"""Reading config.json: every value is either understood or refused by name."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
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
]


@pytest.mark.parametrize(("key", "value"), REFUSED)
def test_an_unsupported_value_is_named(key: str, value: Any) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        config(**{key: value})
    assert str(caught.value).startswith(f"{NOWHERE}: {key} is {json.dumps(value)}; ")


def test_the_method_of_quantization_is_named() -> None:
    with pytest.raises(UnsupportedModel, match=r'quantization_config.quant_method is "aqlm"; .* gptq, awq'):
        config(quantization_config={"quant_method": "aqlm"})


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "su", "mrope"])
@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_unknown_rotary_kinds_are_named(kind: str, key: str) -> None:
    with pytest.raises(UnsupportedModel, match=f'rope_scaling.{key} is "{kind}"'):
        config(rope_scaling={key: kind, "factor": 2.0})


def test_rotary_positions_that_differ_by_layer_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="rope_parameters"):
        config(rope_parameters={"full_attention": {"rope_type": "default"}})


def test_layers_of_other_kinds_are_refused() -> None:
    changes = {"model_type": "qwen3", "use_sliding_window": True, "layer_types": ["linear_attention"] * 2}
    with pytest.raises(UnsupportedModel, match="layer_types"):
        config(**changes)


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
]
ROPE_KEYS = [
    *("rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor", "truncate"),
    *("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim"),
    "original_max_position_embeddings",
]
WORDS = st.sampled_from(
    ["default", "linear", "llama3", "yarn", "silu", "auto", "full_attention", "float16", *FAMILIES]
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


@given(st.sampled_from(["linear", "llama3", "yarn"]), ROPES)
def test_accepted_rotary_settings_give_finite_frequencies(kind: str, values: dict[str, Any]) -> None:
    try:
        read = config(rope_scaling=values | {"rope_type": kind})
    except (UnsupportedModel, BadCheckpoint):
        return
    assert frequencies(read.rope, 8).isfinite().all()
    assert math.isfinite(read.rope.attention_factor)
