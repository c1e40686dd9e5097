"""Models of transformers without a native decoder: the same logits, or a refusal by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode

from engine.api.config import ModelPlace
from engine.api.errors import BadCheckpoint, UnsupportedModel
from engine.models.load_request import LoadRequest
from engine.models.registry import bridged, load_model
from tests.cases import one_of, one_row_of
from tests.models.tiny import plain_attend

SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.15,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GEMMA = {"head_dim": 8, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [4.0] * 4,
    "original_max_position_embeddings": 32,
}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 6,
    "first_k_dense_replace": 2,
}
BRIDGED: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", {}),
    "opt": ("OPT", {"ffn_dim": 48, "word_embed_proj_dim": 24}),
    "gemma": ("Gemma", {"head_dim": 8}),
    "gemma2": ("Gemma2", GEMMA | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma3": ("Gemma3Text", GEMMA | {"query_pre_attn_scalar": 4}),
    "phi": ("Phi", {}),
    "phi3": ("Phi3", {"sliding_window": 5}),
    "phi3-long": ("Phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 32}),
    "olmo": ("Olmo", {"clip_qkv": 0.5}),
    "olmo2": ("Olmo2", {}),
    "olmo3": ("Olmo3", GEMMA),
    "neox": ("GPTNeoX", {"rotary_pct": 0.5}),
    "gpt-oss": ("GptOss", GEMMA | EXPERTS),
    "mixtral": ("Mixtral", EXPERTS),
    "granite": ("Granite", {"logits_scaling": 4.0, "attention_multiplier": 0.3, "residual_multiplier": 0.5}),
    "starcoder2": ("Starcoder2", {"sliding_window": 5}),
    "deepseek": ("DeepseekV3", LATENT),
    "falcon": ("Falcon", {"multi_query": True}),
    "falcon-new": ("Falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    "gptj": ("GPTJ", {"rotary_dim": 4}),
    "gpt-neo": ("GPTNeo", {"attention_types": [[["global", "local"], 1]], "window_size": 5}),
    "codegen": ("CodeGen", {"rotary_dim": 4}),
    "jetmoe": ("JetMoe", {"kv_channels": 8, "num_key_value_heads": 2}),
    "afmoe": (
        "Afmoe",
        {"head_dim": 8, "moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2},
    ),
    "apertus": ("Apertus", {}),
    "dynamic": ("Llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}}),
}


def reference(family: str, changes: dict[str, Any], folder: Path) -> Any:
    import transformers  # seconds, which every test process would spend

    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SHAPE | changes)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if tensor.dim() == 1 and "norm" not in name:  # biases and sinks start as zeros
                tensor.uniform_(-0.5, 0.5)
    model.save_pretrained(folder)
    return model


def load_bridged(name: str, folder: Path) -> Any:
    """Load through the bridge, even if the family has a native decoder."""
    return bridged(LoadRequest(place=ModelPlace(name, folder), device=torch.device("cpu")))


@pytest.mark.parametrize(("family", "changes"), one_row_of(2, BRIDGED.values()), ids=BRIDGED)
def test_logits_are_those_of_transformers(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    from engine.models.bridge.interface import BridgedModel

    theirs = reference(family, changes, tmp_path)
    model = load_bridged(family, tmp_path)
    config = model.config
    assert isinstance(model, BridgedModel)
    assert [spec.sinks for spec in config.layers] == [n in model.sinks for n in range(len(config.layers))]
    rows = [(torch.arange(length) * 31 + length) % 96 for length in (config.max_context - 2, 9)]
    lengths = [len(row) for row in rows]
    attend = plain_attend(config.layers, lengths, model.sinks)
    with torch.inference_mode():
        hidden = model(torch.cat(rows), torch.cat([torch.arange(length) for length in lengths]), attend)
        assert hidden.shape == (sum(lengths), config.hidden)
        logits = model.logits(hidden)
        expected = torch.cat([theirs(row[None]).logits[0] for row in rows])
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_layer_shapes_are_found_by_tracing_the_model(tmp_path: Path) -> None:
    reference("Gemma2", BRIDGED["gemma2"][1], tmp_path)
    config = load_bridged("gemma2", tmp_path).config
    first, second = config.layers
    assert (first.heads, first.kv_heads, first.key_dim, first.value_dim) == (4, 2, 8, 8)
    assert (first.window, second.window) == (5, None)
    assert first.softcap == 2.0
    assert (config.family, config.vocab, config.max_context) == ("gemma2", 96, 64)
    assert (config.start_id, config.stop_ids) == (1, (2,))


def test_longrope_is_limited_to_its_original_context(tmp_path: Path) -> None:
    reference(*BRIDGED["phi3-long"], tmp_path)
    config = load_bridged("phi3", tmp_path).config
    assert config.max_context == 32


def config_only(folder: Path, model_type: str, **changes: Any) -> ModelPlace:
    """Write only a config, so any refusal other than of missing weights comes before they are read."""
    (folder / "config.json").write_text(json.dumps(SHAPE | {"model_type": model_type} | changes))
    return ModelPlace(model_type, folder)


REFUSED: dict[str, dict[str, Any]] = {
    "falcon": {"alibi": True},
    "xglm": {"d_model": 32, "attention_heads": 4, "num_layers": 2, "ffn_dim": 48},
    "mamba": {},
    "falcon_mamba": {},
    "rwkv": {},
    "bert": {},
    "t5": {},
    "no-such-model": {},
}


@pytest.mark.parametrize(
    ("model_type", "why"),
    [
        ("blt", "its config has no hidden_size, which a plain decoder has"),
        ("gemma4_assistant", "'validate_architecture': ValueError: hidden_size_per_layer_input must be 0"),
    ],
)
def test_a_config_without_sizes_is_refused_by_name(model_type: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(UnsupportedModel, match=f'model_type is "{model_type}"; .*{why}'):
        load_model(ModelPlace(model_type, tmp_path))


@pytest.mark.parametrize("model_type", one_of(2, REFUSED))
def test_models_that_cannot_be_paged_are_refused_by_name(model_type: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=f'model_type is "{model_type}"') as refused:
        load_model(config_only(tmp_path, model_type, **REFUSED[model_type]))
    assert len(str(refused.value)) < 600 and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("Bloom", {}),
        ("Mamba", {}),
        ("RecurrentGemma", {"lru_width": 32}),
        ("Mpt", {"d_model": 32, "n_heads": 4}),
    ],
)
def test_a_config_without_a_context_is_refused_for_what_its_layers_do(
    family: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    """The config is as transformers writes it: without max_position_embeddings."""
    import transformers

    config = getattr(transformers, f"{family}Config")(num_hidden_layers=2, hidden_size=32, **changes)
    config.save_pretrained(tmp_path)
    assert "max_position_embeddings" not in json.loads((tmp_path / "config.json").read_text())
    with pytest.raises(UnsupportedModel, match="model_type is") as refused:
        load_bridged(family, tmp_path)
    assert "max_position_embeddings" not in str(refused.value)


def test_positions_that_start_elsewhere_are_refused(tmp_path: Path) -> None:
    """RoBERTa's first position follows its padding token, so ours would read other embeddings."""
    reference("Roberta", {"is_decoder": True}, tmp_path)
    with pytest.raises(UnsupportedModel, match="its results over the paged cache differ"):
        load_bridged("roberta", tmp_path)


def test_a_cache_with_a_window_that_attention_lacks_is_refused(tmp_path: Path) -> None:
    """transformers' own tokens depend on the use of its cache then."""
    import transformers

    config = {name: value for name, value in SHAPE.items() if name != "intermediate_size"}
    made = transformers.MoshiConfig(**config, sliding_window=21, ffn_dim=64, head_dim=8)
    transformers.MoshiForCausalLM(made).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="cache keeps 21 tokens, but its attention has no window"):
        load_bridged("moshi", tmp_path)


def test_a_missing_package_is_named_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gemma 3n's parts for images need timm, which is not a dependency."""
    from transformers.models.gpt2.modeling_gpt2 import GPT2MLP

    def missing(*args: Any, **kwargs: Any) -> None:
        raise ImportError("\nIt requires the timm library but it was not found.\nInstall it with pip.")

    monkeypatch.setattr(GPT2MLP, "__init__", missing)
    with pytest.raises(UnsupportedModel) as refused:
        load_model(config_only(tmp_path, "gpt2"), dummy=True)
    assert "a package that is not installed (It requires the timm library but" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_falcon_with_alibi_is_refused_for_it(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="ALiBi, which adds a bias for each distance"):
        load_model(config_only(tmp_path, "falcon", alibi=True))


@pytest.mark.parametrize("name", ["falcon", "falcon-new"])
def test_falcon_has_neither_lists_as_indices_nor_masks(name: str, tmp_path: Path) -> None:
    """The host would wait for the copy of a list to a GPU, and no graph could hold the step. Some versions of
    transformers build masks with such a copy, too."""
    family, changes = BRIDGED[name]
    reference(family, changes, tmp_path)
    model, run = load_bridged("falcon", tmp_path), list[str]()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            run.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    ids = torch.arange(3, 9)
    with torch.inference_mode(), Watch():
        model.forward(ids, torch.arange(6), plain_attend(model.config.layers))
    assert "matmul" in run, "their linear layers have run"
    assert "index" not in run and "where" not in run


def test_an_error_in_their_forward_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.gpt2.modeling_gpt2 import GPT2MLP

    def fails(self: Any, x: torch.Tensor) -> torch.Tensor:
        return x if x.is_meta else x.view(3, -1, 5)

    monkeypatch.setattr(GPT2MLP, "forward", fails)
    with pytest.raises(
        UnsupportedModel, match=r"does not run it as a plain decoder .shape '.3, -1, 5.' is invalid"
    ):
        load_model(config_only(tmp_path, "gpt2"), dummy=True)


def test_the_refusal_names_an_unsupported_kind_of_layer(tmp_path: Path) -> None:
    refusal = r"its linear_attention layers are not supported, only full_attention and sliding_att"
    with pytest.raises(UnsupportedModel, match=refusal):
        load_model(config_only(tmp_path, "falcon_mamba"))


def test_a_model_that_mixes_tokens_outside_attention_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.gpt2.modeling_gpt2 import GPT2MLP

    plain = GPT2MLP.forward

    def shifting(self: Any, x: torch.Tensor) -> torch.Tensor:
        return plain(self, x + x.roll(1, dims=1))  # as a convolution or a recurrence would

    monkeypatch.setattr(GPT2MLP, "forward", shifting)
    with pytest.raises(
        UnsupportedModel, match="its results over the paged cache differ from those of transformers"
    ):
        load_model(config_only(tmp_path, "gpt2"), dummy=True)


def test_dummy_weights_are_determined_by_the_seed(tmp_path: Path) -> None:
    from engine.models.bridge.interface import BridgedModel

    def made(seed: int) -> torch.Tensor:
        model = load_model(config_only(tmp_path, "gpt2"), dummy=True, seed=seed, dtype="bfloat16")
        assert isinstance(model, BridgedModel)
        return model.model.transformer.wte.weight

    state = torch.random.get_rng_state()
    first = made(1)
    assert torch.equal(state, torch.random.get_rng_state())
    assert first.dtype == torch.bfloat16
    assert torch.equal(first, made(1))
    assert not torch.equal(first, made(2))


def test_broken_checkpoints_are_refused(tmp_path: Path) -> None:
    reference("GPT2", {}, tmp_path)
    file = tmp_path / "model.safetensors"
    tensors, whole = load_file(file), file.read_bytes()
    del tensors["transformer.h.1.mlp.c_fc.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(BadCheckpoint, match=r": transformer\.h\.1\.mlp\.c_fc\.weight is missing"):
        load_model(ModelPlace("gpt2", tmp_path))
    file.write_bytes(whole[:-100])
    with pytest.raises(BadCheckpoint, match=str(tmp_path)):
        load_model(ModelPlace("gpt2", tmp_path))
    file.rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(BadCheckpoint, match="is a pickle"):
        load_model(ModelPlace("gpt2", tmp_path))


def test_code_that_comes_with_a_model_is_never_run(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('the code ran')")
    place = config_only(
        tmp_path, "unheard-of", auto_map={"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    )
    with pytest.raises(UnsupportedModel, match="unheard-of"):
        load_model(place)


def test_quantized_models_are_refused_by_method(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="quantized with mxfp4"):
        load_model(config_only(tmp_path, "gpt2", quantization_config={"quant_method": "mxfp4"}))
