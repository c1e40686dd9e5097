"""Models for images and text: the text model runs, most natively, and the others are not read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.api.config import ModelPlace
from engine.api.errors import BadCheckpoint, UnsupportedModel
from engine.models.base import LanguageModel
from engine.models.config_json import decoder_config, read_config
from engine.models.fields import Fields
from engine.models.load_request import LoadRequest
from engine.models.registry import bridged, native
from tests.matrix.small import make
from tests.models.tiny import plain_attend

NOWHERE = Path("model/config.json")
IDS = torch.arange(3, 60)


def read(**values: Any) -> Any:
    return decoder_config(Fields(NOWHERE, values), Fields(NOWHERE, {}))


@pytest.mark.parametrize(("family", "load"), [("gemma3", native), ("mistral3", native), ("gemma3n", bridged)])
@torch.inference_mode()
def test_logits_are_those_of_transformers(
    family: str, load: Callable[[LoadRequest], LanguageModel], tmp_path: Path
) -> None:
    theirs = make(family, tmp_path)
    ours = load(LoadRequest(place=ModelPlace("tiny", tmp_path), device=torch.device("cpu")))
    hidden = ours.forward(IDS, torch.arange(len(IDS)), plain_attend(ours.config.layers, [len(IDS)]))
    torch.testing.assert_close(ours.logits(hidden), theirs(IDS[None]).logits[0], atol=1e-4, rtol=1e-4)


def test_gemma_3_as_published() -> None:
    """Its config.json leaves out what equals the defaults of transformers: this is that of the one of 4B."""
    text = {
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
        "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }  # fmt: skip
    found = read(
        architectures=["Gemma3ForConditionalGeneration"], model_type="gemma3", eos_token_id=[1, 106],
        text_config=text, torch_dtype="bfloat16", vision_config={"hidden_size": 1152},
    )  # fmt: skip
    assert (found.hidden, found.vocab, found.mlp, found.max_context) == (2560, 262_208, 10_240, 131_072)
    spec = found.layers[0]
    assert (spec.heads, spec.kv_heads, spec.key_dim, spec.window, spec.scale) == (8, 4, 256, 1024, 1 / 16)
    assert [index for index, each in enumerate(found.layers) if each.window is None] == [5, 11, 17, 23, 29]
    assert found.tied and (found.start_id, found.stop_ids) == (2, (1, 106))
    assert found.local_rope is not None and (found.rope.factor, found.local_rope.theta) == (8.0, 10_000.0)


def test_mistral_small_3_as_published() -> None:
    text = {
        "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 32768,
        "max_position_embeddings": 131_072, "model_type": "mistral", "num_attention_heads": 32,
        "num_hidden_layers": 40, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1e9,
        "sliding_window": None, "vocab_size": 131_072,
    }  # fmt: skip
    found = read(
        architectures=["Mistral3ForConditionalGeneration"], model_type="mistral3", text_config=text,
        torch_dtype="bfloat16", vision_config={"hidden_size": 1024},
    )  # fmt: skip
    assert (found.hidden, found.layers[0].key_dim, found.layers[0].window) == (5120, 128, None)
    assert not found.tied and found.rope.theta == 1e9


@pytest.mark.parametrize(("family", "inner"), [("mistral3", "llama"), ("gemma3", "gemma2"), ("llama4", 3)])
def test_another_text_model_is_refused_by_name(family: str, inner: object) -> None:
    with pytest.raises((UnsupportedModel, BadCheckpoint), match=r"text_config\.model_type is"):
        read(model_type=family, text_config={"model_type": inner})


@pytest.mark.parametrize("text", [None, [], "gemma3_text"])
def test_a_text_config_that_is_no_object(text: object, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mistral3", "text_config": text}))
    with pytest.raises((UnsupportedModel, BadCheckpoint)):
        read_config(tmp_path)


def test_the_width_of_queries_that_scales_scores_is_256_unless_given() -> None:
    """Not that of a head, which may differ."""
    text = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 128}
    assert read(model_type="gemma3", text_config=text).layers[0].scale == 1 / 16


MINISTRAL: dict[str, Any] = {
    "model_type": "ministral3", "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96,
    "head_dim": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16,
        "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.5,
    },
}  # fmt: skip


def test_ministral_3_alone_or_beside_images() -> None:
    alone, beside = read(**MINISTRAL), read(model_type="mistral3", text_config=MINISTRAL)
    assert alone.settings == beside.settings == {"growth": 0.5, "floor": 16}
    assert {each.window for each in (*alone.layers, *beside.layers)} == {None}
    older = read(model_type="mistral3", text_config=MINISTRAL | {"model_type": "mistral"})
    assert older.settings["growth"] == 0.0  # Mistral has no such field


@pytest.mark.parametrize(
    "rope",
    [
        None,  # transformers has a default that differs from that of other models
        MINISTRAL["rope_parameters"] | {"llama_4_scaling_beta": -1.0},
        MINISTRAL["rope_parameters"] | {"original_max_position_embeddings": 0},
    ],
)
def test_bad_positions_of_ministral_3(rope: Any) -> None:
    with pytest.raises((UnsupportedModel, BadCheckpoint), match="rope_parameters"):
        read(**MINISTRAL | {"rope_parameters": rope})
