"""GGUF files against transformers, with weights that the package gguf dequantizes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import save_file
from torch import Tensor

from engine.gguf.kinds import FOUR_BITS, READABLE
from engine.models.decoder import Decoder
from engine.models.find import find_model
from engine.models.registry import load_model
from engine.models.rope import frequencies
from engine.quant.gguf import dequantized, grouped
from engine.quant.registry import named
from tests.models.families import EXPERTS, PADDED, SCALES, SHAPE, reference
from tests.models.gguf.ggufs import gguf, random_bytes, write_gguf
from tests.models.tiny import plain_attend
from tests.quant.changing import drain_of, engine_on, switch

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
    "llama-biases": ("llama", "Llama", {"attention_bias": True, "mlp_bias": True}),
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
    "glm4-no-bias": ("glm4", "Glm4", PADDED | {"head_dim": 16, "attention_bias": False}),
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


@pytest.mark.parametrize("kind", [kind for kind, blocks in READABLE.items() if blocks.numbers > 1])
def test_a_type_stands_for_the_same_numbers_as_in_the_package(kind: str) -> None:
    raw = random_bytes((6, 512), kind, 3)
    raw[:2] = 0  # scales of 0
    expected = torch.from_numpy(gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind]))
    assert torch.equal(dequantized(kind, torch.from_numpy(raw), torch.float32), expected)
    if kind in FOUR_BITS:
        weight = grouped(kind, torch.from_numpy(raw))
        assert weight.group == 32
        torch.testing.assert_close(weight.dequantized(), expected, rtol=1e-6, atol=1e-7)


def mixed(name: str) -> str:
    """The types of a file called Q4_K_M, with a Q5_K and a Q4_0 added."""
    for part, kind in (
        ("v_proj", "Q6_K"),
        ("down", "Q5_K"),
        ("up", "Q4_0"),
        ("embed", "Q8_0"),
        ("head", "Q6_K"),
    ):
        if part in name:
            return kind
    return "Q4_K"


@pytest.fixture(scope="module")
def four_bits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    changes = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
    return made(tmp_path_factory.mktemp("mixed"), "llama", "Llama", changes, kind=mixed)


def products(model: Decoder) -> list[Tensor]:
    """The weights that the first layer multiplies with."""
    attention, mlp = model.blocks[0].parts
    names = ((attention, "qkv"), (attention, "out"), (mlp, "gate_up"), (mlp, "down"))
    with torch.inference_mode():
        return [part.get_submodule(name)(torch.eye(256, dtype=model.embed.dtype)).T for part, name in names]


def test_four_bits_stay_four_bits_and_others_become_plain(four_bits: tuple[Path, Any]) -> None:
    file, theirs = four_bits
    model = loaded(file, dtype="float32")
    assert model.source.scheme("none").name == "int4"
    layer = theirs.model.layers[0]
    joined = [
        torch.cat(
            [each.weight for each in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj)]
        ),
        layer.self_attn.o_proj.weight,
        torch.cat([layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight]),
        layer.mlp.down_proj.weight,
    ]
    for found, expected in zip(products(model), joined, strict=True):
        torch.testing.assert_close(found, expected.detach(), rtol=0, atol=1e-6)
    ids = torch.arange(3, 40)
    with torch.inference_mode():
        torch.testing.assert_close(logits(model, ids), theirs(ids[None]).logits[0], atol=1e-4, rtol=1e-4)
    own, whole = model.source.scheme("none"), named("int4-32")
    sizes = (256, 256, torch.float32, torch.device("cpu"))
    assert own.nbytes(*sizes) == whole.nbytes(*sizes) * 3 / 4 + 256 * 256, (
        "a quarter is plain: values and down"
    )


def with_words(writer: Any) -> None:
    """A tokenizer of 96 tokens, which an engine requires."""
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"<{n}>" for n in range(96)])
    writer.add_token_scores([0.0] * 96)


def test_an_engine_replies_as_transformers_does(tmp_path: Path) -> None:
    changes = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
    file, theirs = made(tmp_path, "qwen3", "Qwen3", changes, kind=mixed, more=with_words)
    engine = engine_on(file, dtype="float32")
    assert engine.snapshot().quantization == "int4"
    prompt = list(range(5, 25))
    reply = drain_of(engine, prompt).tokens
    with torch.inference_mode():
        for token in reply:  # greedy: each is the best after those before it
            assert token == int(theirs(torch.tensor([prompt])).logits[0, -1].argmax())
            prompt.append(token)
    assert len(reply) > 5
    switch(engine, "int8")
    switch(engine, "int4")
    assert drain_of(engine, prompt[:20]).tokens == reply


def test_another_scheme_is_made_from_the_files_numbers_and_undone(four_bits: tuple[Path, Any]) -> None:
    model = loaded(four_bits[0], dtype="float32")
    before, source = products(model), model.source
    model.layers[0] = source.layer(0, source.scheme("int8"))
    changed = products(model)
    assert all(0.001 < float((a - b).norm() / b.norm()) < 0.02 for a, b in zip(changed, before, strict=True))
    model.layers[0] = source.layer(0, source.scheme("none"))
    assert all(torch.equal(a, b) for a, b in zip(products(model), before, strict=True))


def test_the_loss_is_measured_and_logged(
    four_bits: tuple[Path, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "minichat.engine"):
        exact = products(loaded(four_bits[0], dtype="float32"))
        lossy = products(loaded(four_bits[0], dtype="float32", quantization="int8"))
    (none, none_text), (some, some_text) = ((each.levelname, each.getMessage()) for each in caplog.records)
    assert (none, some) == ("INFO", "WARNING")
    assert "weights in int4 (float32) differ from those in the file by" in none_text
    assert float(none_text.split()[-5]) < 1e-3
    difference = sum(float((a - b).square().sum()) for a, b in zip(exact, lossy, strict=True))
    expected = 100 * (difference / sum(float(each.square().sum()) for each in exact)) ** 0.5
    assert float(some_text.split()[-5]) == pytest.approx(expected, rel=0.3)


def test_rope_factors_replace_the_settings_of_llama3(tmp_path: Path) -> None:
    """The file has no settings of Llama 3.1's rotary positions, only the factors that they result in."""
    import transformers

    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    changes = {"rope_parameters": {**rope, "rope_theta": 1e4, "original_max_position_embeddings": 64}}
    model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**SHAPE | WIDE | changes))
    plain = 1 / 1e4 ** (torch.arange(0, 16, 2) / 16)
    factors = (plain / model.model.rotary_emb.inv_freq).numpy()
    file = made(
        tmp_path,
        "llama",
        "Llama",
        changes,
        more=lambda writer: writer.add_tensor("rope_freqs.weight", factors),
    )[0]
    found = loaded(file).config.rope
    torch.testing.assert_close(frequencies(found, 16), model.model.rotary_emb.inv_freq, rtol=1e-5, atol=0)
    assert found.attention_factor == 1.0 and loaded(file).config.max_context == 256
