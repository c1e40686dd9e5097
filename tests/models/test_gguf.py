"""GGUF files against transformers, with weights that the package gguf dequantizes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import save_file
from torch import Tensor

from engine.models.decoder import Decoder
from engine.models.find import find_model
from engine.models.registry import load_model
from tests.models.ggufs import write_gguf
from tests.models.test_families import EXPERTS, PADDED, SCALES, reference
from tests.models.tiny import plain_attend

WIDE = {"intermediate_size": 96, "num_hidden_layers": 2}
CAPS = {
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 3.0,
    "query_pre_attn_scalar": 32,
    "head_dim": 32,
}
MOE = EXPERTS | {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 64}
LINEAR = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("llama", "Llama", {"head_dim": 24, "attention_bias": False}),
    "llama-yarn": ("llama", "Llama", {"tie_word_embeddings": True, "rope_parameters": YARN}),
    "mixtral": ("llama", "Mixtral", MOE),
    "qwen2": ("qwen2", "Qwen2", {}),
    "qwen3": ("qwen3", "Qwen3", {"head_dim": 24, "tie_word_embeddings": True}),
    "smollm3": ("smollm3", "SmolLM3", PADDED | {"num_hidden_layers": 4}),
    "granite": ("granite", "Granite", SCALES),
    "gemma": ("gemma", "Gemma", {"head_dim": 24}),
    "gemma2": ("gemma2", "Gemma2", CAPS | {"sliding_window": 5}),
    "gemma3": (
        "gemma3",
        "Gemma3Text",
        {"head_dim": 24, "query_pre_attn_scalar": 24, "rope_parameters": LINEAR, "sliding_window": 5}
        | {"num_hidden_layers": 6},
    ),
    "phi3": (
        "phi3",
        "Phi3",
        PADDED | {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.75}},
    ),
    "starcoder2": ("starcoder2", "Starcoder2", {}),
    "olmo2": ("olmo2", "Olmo2", {}),
    "glm4": ("glm4", "Glm4", PADDED | {"head_dim": 24}),
    "cohere": ("command-r", "Cohere", {"logit_scale": 0.3, "use_qk_norm": False}),
    "cohere2": ("cohere2", "Cohere2", {"head_dim": 24, "sliding_window": 5, "num_hidden_layers": 4}),
    "qwen2moe": ("qwen2moe", "Qwen2Moe", MOE),
    "qwen3moe": ("qwen3moe", "Qwen3Moe", MOE | {"norm_topk_prob": True, "head_dim": 24}),
    "olmoe": ("olmoe", "Olmoe", MOE | {"intermediate_size": 32}),
}


def made(
    folder: Path, architecture: str, family: str, changes: dict[str, Any], **options: Any
) -> tuple[Path, Any]:
    """Write a GGUF file. Returns it, and a transformers model with the same numbers."""
    import transformers

    model = reference(family, WIDE | changes, folder)
    file = folder / "tiny.gguf"
    exact = write_gguf(file, architecture, model.config, load_file(folder / "model.safetensors"), **options)
    save_file(
        {name: torch.from_numpy(each.copy()) for name, each in exact.items()}, folder / "model.safetensors"
    )
    return file, transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()


def loaded(file: Path, **options: Any) -> Decoder:
    model = load_model(find_model(str(file)), **options)
    assert isinstance(model, Decoder)
    return model


@torch.inference_mode()
def logits(model: Decoder, ids: Tensor) -> Tensor:
    hidden = model.forward(ids, torch.arange(len(ids)), plain_attend(model.config.layers))
    return model.logits(hidden)


@pytest.mark.parametrize("case", CASES)
def test_an_architecture_equals_transformers(case: str, tmp_path: Path) -> None:
    file, theirs = made(tmp_path, *CASES[case])
    ours = loaded(file, dtype="float32")
    ids = torch.randint(3, 96, (40,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = theirs(ids[None]).logits[0]
    torch.testing.assert_close(logits(ours, ids), expected, atol=1e-4, rtol=1e-4)
    assert (ours.config.start_id, ours.config.stop_ids) == (1, (2,))
