"""Loading weights: what is accepted, and the errors for everything else."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from engine.api.config import ModelPlace
from engine.api.errors import BadCheckpoint, BadInput
from engine.models import source
from engine.models.config_json import read_config
from engine.models.decoder import Decoder
from engine.models.find import Progress
from engine.models.loader import Checkpoint, decoder_slots, random_weights
from engine.models.registry import load_model
from tests.models.tiny import CONFIG, checkpoint, write_config

UP = "model.layers.1.mlp.up_proj.weight"


def load(folder: Path, progress: Progress | None = None) -> Decoder:
    config = read_config(folder)
    model = Decoder(config, getattr(torch, config.dtype))
    Checkpoint(model, folder, progress).read(decoder_slots(model))
    return model


def refusal(folder: Path) -> str:
    with pytest.raises(BadCheckpoint) as caught:
        load(folder)
    return str(caught.value)


def test_random_weights_are_saved_and_loaded(tmp_path: Path) -> None:
    checkpoint(tmp_path, model_type="qwen3", head_dim=8)
    made = Decoder(read_config(tmp_path), torch.float32)
    random_weights(made, seed=7)
    loaded = load(tmp_path).state_dict()
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in made.state_dict().items())


def test_shards_are_read_one_by_one_and_counted(tmp_path: Path) -> None:
    tensors = checkpoint(tmp_path)
    whole = load(tmp_path).state_dict()
    (tmp_path / "model.safetensors").unlink()
    names = list(tensors)
    parts = {"model-00001-of-00002.safetensors": names[:5], "model-00002-of-00002.safetensors": names[5:]}
    for file, part in parts.items():
        save_file({name: tensors[name] for name in part}, tmp_path / file)
    index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))

    reported: list[tuple[int, int]] = []
    model = load(tmp_path, lambda *amount: reported.append(amount))
    assert all(torch.equal(tensor, whole[name]) for name, tensor in model.state_dict().items())
    total = sum(tensor.nbytes for tensor in tensors.values())
    assert reported == sorted(reported)
    assert reported[-1] == (total, total)

    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    assert "names model-00002-of-00002.safetensors, which does not exist" in refusal(tmp_path)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floats_are_converted(tmp_path: Path, kind: torch.dtype) -> None:
    tensors = {name: tensor.to(kind) for name, tensor in checkpoint(tmp_path).items()}
    save_file(tensors, tmp_path / "model.safetensors")
    model = load(tmp_path)
    assert model.embed.dtype == torch.float32
    assert torch.equal(model.embed, tensors["model.embed_tokens.weight"].float())


def test_the_dtype_defaults_to_the_checkpoints(tmp_path: Path) -> None:
    tensors = {name: tensor.bfloat16() for name, tensor in checkpoint(tmp_path, dtype=None).items()}
    save_file(tensors, tmp_path / "model.safetensors")
    assert load(tmp_path).embed.dtype == torch.bfloat16


def test_tied_heads_are_one_tensor_and_a_copy_in_the_file_is_ignored(tmp_path: Path) -> None:
    tensors = checkpoint(tmp_path, tie_word_embeddings=True)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    save_file(tensors, tmp_path / "model.safetensors")
    model = load(tmp_path)
    assert model.head.weight is model.embed


def test_names_may_lack_the_root(tmp_path: Path) -> None:
    """Bloom was published as the model without its head."""
    tensors = checkpoint(tmp_path, model_type="bloom")
    expected = load(tmp_path).state_dict()
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    save_file(bare, tmp_path / "model.safetensors")
    assert all(torch.equal(tensor, expected[name]) for name, tensor in load(tmp_path).state_dict().items())
    save_file(bare | {"h.9.ln.weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    assert "h.9.ln.weight is not part of this model" in refusal(tmp_path)


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    file = tmp_path / "model.safetensors"
    for length in (0, 5, 200, file.stat().st_size - 1):
        file.write_bytes(file.read_bytes()[:length] or b"")
        assert f"{file} is corrupt or truncated" in refusal(tmp_path)
        checkpoint(tmp_path)


def test_a_wrong_tensor_is_named(tmp_path: Path) -> None:
    tensors = checkpoint(tmp_path)
    file = tmp_path / "model.safetensors"

    def spoil(**changes: torch.Tensor | None) -> str:
        spoiled = {name: tensor for name, tensor in (tensors | changes).items() if tensor is not None}
        save_file(spoiled, file)
        message = refusal(tmp_path)
        assert str(tmp_path) in message
        return message

    assert f"{UP} is [48, 31], the config requires [48, 32]" in spoil(**{UP: torch.zeros(48, 31)})
    assert f"{UP} holds I8" in spoil(**{UP: torch.zeros(48, 32, dtype=torch.int8)})
    assert f"{UP} holds F8_E4M3" in spoil(**{UP: torch.zeros(48, 32, dtype=torch.float8_e4m3fn)})
    assert f"{tmp_path}: {UP} is missing" in spoil(**{UP: None})
    assert "lm_head.bias is not part of this model" in spoil(**{"lm_head.bias": torch.zeros(96)})


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    tensors = checkpoint(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "a.safetensors")
    save_file({UP: tensors[UP]}, tmp_path / "b.safetensors")
    index = {"weight_map": dict.fromkeys(tensors, "a.safetensors") | {UP: "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert f"{UP} is in a.safetensors as well" in refusal(tmp_path)


@pytest.mark.parametrize(
    "index", ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 3}}', '{"weight_map": {"a": [1]}}']
)
def test_a_broken_index_is_refused(tmp_path: Path, index: str) -> None:
    write_config(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(index)
    assert "model.safetensors.index.json" in refusal(tmp_path)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "weights.bin", ""])
def test_an_index_may_only_name_files_beside_it(tmp_path: Path, name: str) -> None:
    write_config(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    assert "not a safetensors file in the same folder" in refusal(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_a_pickle_is_refused_unopened(tmp_path: Path, name: str) -> None:
    write_config(tmp_path)
    (tmp_path / name).write_bytes(b"never read")
    message = refusal(tmp_path)
    assert f"{name} is a pickle" in message
    assert "save_pretrained" in message


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    assert "holds neither model.safetensors nor" in refusal(write_config(tmp_path))


def test_random_weights_depend_only_on_seed_and_name(tmp_path: Path) -> None:
    def made(seed: int, **changes: object) -> dict[str, torch.Tensor]:
        model = Decoder(read_config(write_config(tmp_path, **changes)), torch.float32)
        random_weights(model, seed)
        return model.state_dict()

    short, long, other = made(1), made(1, num_hidden_layers=3), made(2)
    assert all(torch.equal(tensor, long[name]) for name, tensor in short.items())
    assert not torch.equal(short["embed"], other["embed"])
    assert not torch.equal(long["layers.0.attention.out.weight"], long["layers.1.attention.out.weight"])
    assert torch.equal(short["layers.0.attention.norm.weight"], torch.ones(32))
    assert 0.015 < short["embed"].std() < 0.025


def test_random_weights_need_no_checkpoint(tmp_path: Path) -> None:
    model = load_model(ModelPlace("tiny", write_config(tmp_path)), dummy=True, dtype="float16")
    config = model.config
    assert next(iter(model.parameters())).dtype == torch.float16
    assert config.vocab == CONFIG["vocab_size"]


def test_a_layer_that_does_not_fit_on_a_gpu_is_refused_in_plain_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 48.00 MiB. GPU 0 has a total capacity of 139.80 GiB of "
            "which 21.56 MiB is free. Including non-PyTorch memory, this process has 5.53 GiB memory in use."
        )

    monkeypatch.setattr(source, "block", full)
    with pytest.raises(BadInput) as caught:
        load_model(ModelPlace("tiny", write_config(tmp_path)), dummy=True)
    assert str(caught.value).endswith(
        "fit on cpu: the GPU has no room for 48.00 MiB more, with 21.56 MiB free"
    )


def test_a_model_larger_than_memory_is_refused_by_name(tmp_path: Path) -> None:
    place = ModelPlace("vast", write_config(tmp_path, vocab_size=1 << 24, hidden_size=1 << 20, head_dim=8))
    with pytest.raises(BadInput, match="vast does not fit on cpu"):
        load_model(place, dummy=True)


def test_a_shorter_context_is_used_and_a_longer_one_refused(tmp_path: Path) -> None:
    place = ModelPlace("tiny", write_config(tmp_path))
    config = load_model(place, dummy=True, max_context=64).config
    assert config.max_context == 64
    with pytest.raises(
        BadInput, match=f"max_context is 129; tiny supports at most {CONFIG['max_position_embeddings']}"
    ):
        load_model(place, dummy=True, max_context=129)
