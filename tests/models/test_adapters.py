"""Adapters in PEFT's format: what they add, and which files are refused."""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from engine.api.config import ModelPlace
from engine.api.errors import BadCheckpoint, BadInput, EngineError, ModelNotFound, UnsupportedModel
from engine.models.adapters import products
from engine.models.adapters.bank import AdapterBank
from engine.models.adapters.files import key, read_adapter
from engine.models.adapters.find import find_adapter
from engine.models.adapters.products import GroupedAdapters, MaskedAdapters, OneAdapter
from engine.models.adapters.settings import CONFIG, WEIGHTS, read_settings
from engine.models.adapters.targets import adapter_targets
from engine.models.config_json import read_config
from engine.models.decoder import Decoder
from engine.models.layers.step import StepContext
from engine.models.registry import load_model
from tests.models.families import reference
from tests.models.lora import LLAMA, adapter_tensors, merge, random_adapter, write_adapter
from tests.models.tiny import CONFIG as CONFIG_JSON
from tests.models.tiny import checkpoint, plain_attend

QUERY = "model.layers.0.self_attn.q_proj"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    checkpoint(folder)
    return folder


def loaded(folder: Path, quantization: str = "none") -> Decoder:
    model = load_model(
        ModelPlace("m", folder), device=CPU, dtype="float32", max_context=None, quantization=quantization
    )
    assert isinstance(model, Decoder)
    return model


def logits(model: Decoder, adapters: products.StepAdapters | None = None, count: int = 9) -> Tensor:
    ids, positions = torch.arange(count) * 7 % 90, torch.arange(count)
    with torch.inference_mode():
        attend = plain_attend(model.config.layers)
        return model.logits(model.forward(ids, positions, attend, adapters=adapters))


@pytest.mark.parametrize("root", ["language_model.model", "model.language_model"])
def test_the_text_model_beside_images_under_either_name(root: str, tmp_path: Path) -> None:
    """Checkpoints and older versions of transformers have the first one, PEFT saves the second one today."""
    text = CONFIG_JSON | {"model_type": "mistral", "sliding_window": None}
    values = {"model_type": "mistral3", "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(values))
    targets = adapter_targets(read_config(tmp_path))
    stored = "language_model.model."
    tensors = {
        name.replace(stored, f"{root}."): each for name, each in adapter_tensors(tmp_path, ["q_proj"]).items()
    }
    pattern = {"target_modules": rf".*{re.escape(root)}.*\.q_proj"}
    for changes in ({"target_modules": ["q_proj"]}, pattern):
        found = read_adapter(write_adapter(tmp_path / "a", tensors, **changes), targets, torch.float32)
        assert len(found.products) == len(tensors) // 2 > 0


def only(model: Decoder, adapter: Path) -> products.StepAdapters:
    found = read_adapter(adapter, adapter_targets(model.config), torch.float32)
    return OneAdapter(found.products)


def read(adapter: Path, base: Path) -> Any:
    return read_adapter(adapter, adapter_targets(read_config(base)), torch.float32)


# What an adapter adds


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({"r": 4, "lora_alpha": 8}, 2.0),
        ({"r": 9, "lora_alpha": 6, "use_rslora": True}, 2.0),
        ({"r": 4, "lora_alpha": 1, "target_modules": ["v_proj", "down_proj"]}, 0.25),
    ],
)
def test_it_adds_what_merging_it_would(
    base: Path, tmp_path: Path, config: dict[str, Any], scale: float
) -> None:
    adapter = random_adapter(tmp_path / "a", base, **config)
    model, merged = loaded(base), loaded(merge(base, adapter, scale, tmp_path / "merged"))
    assert (logits(model, only(model, adapter)) - logits(merged)).abs().max() < 1e-4
    assert (logits(model, only(model, adapter)) - logits(model)).abs().max() > 1e-2


def test_halves_of_a_joined_checkpoint_cover_all_its_rows(tmp_path: Path) -> None:
    base = tmp_path / "phi3"
    base.mkdir()
    reference("Phi3", {"pad_token_id": 0}, base)
    joined = ["qkv_proj", "gate_up_proj", "o_proj"]
    adapter = random_adapter(tmp_path / "a", base, target_modules=joined)
    model, merged = loaded(base), loaded(merge(base, adapter, 2.0, tmp_path / "merged"))
    assert len(load_file(adapter / WEIGHTS)) == 2 * 3 * len(model.config.layers)
    assert (logits(model, only(model, adapter)) - logits(merged)).abs().max() < 1e-4


def test_feed_forwards_of_two_products(tmp_path: Path) -> None:
    base = tmp_path / "starcoder2"
    base.mkdir()
    reference("Starcoder2", {}, base)
    adapter = random_adapter(tmp_path / "a", base, target_modules=["c_fc", "c_proj", "q_proj"])
    model, merged = loaded(base), loaded(merge(base, adapter, 2.0, tmp_path / "merged"))
    assert (logits(model, only(model, adapter)) - logits(merged)).abs().max() < 1e-4


@pytest.mark.parametrize("scheme", ["int8", "int4", "bnb-nf4"])
def test_it_is_added_beside_quantized_weights(base: Path, tmp_path: Path, scheme: str) -> None:
    adapter = random_adapter(tmp_path, base, target_modules=["down_proj"])
    model, halves = loaded(base, scheme), load_file(adapter / WEIGHTS)
    part, x = model.blocks[1].feed_forward, torch.randn(3, 48)
    assert type(part.down) is not type(loaded(base).blocks[1].feed_forward.down)
    attend = plain_attend(model.config.layers)
    step = StepContext(torch.arange(3), model.rope, attend, adapters=only(model, adapter))
    module = "model.layers.1.mlp.down_proj"
    added = x @ halves[key(module, "A")].T @ halves[key(module, "B")].T * 2
    assert torch.allclose(part.product("down", x, step), part.down(x) + added, atol=1e-5)


def test_ranks_and_scales_by_pattern(base: Path, tmp_path: Path) -> None:
    patterns = {
        "rank_pattern": {"k_proj": 2, r"layers\.1\..*v_proj": 3},
        "alpha_pattern": {"^model.layers.0.*k_proj": 5},
    }
    write_adapter(tmp_path, {}, r=4, lora_alpha=8, target_modules="all-linear", **patterns)
    settings = read_settings(tmp_path)
    name = "model.layers.{}.self_attn.{}".format
    assert [settings.rank_of(name(at, p)) for at in (0, 1) for p in ("k_proj", "v_proj")] == [2, 4, 2, 3]
    assert settings.scale_of(name(0, "k_proj")) == 5 / 2
    assert settings.scale_of(name(1, "k_proj")) == 8 / 2
    assert settings.scale_of(name(0, "q_proj")) == 8 / 4


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({"target_modules": ["q_proj", "1.mlp.up_proj"]}, [(0, "q_proj"), (1, "q_proj"), (1, "up_proj")]),
        ({"target_modules": r".*\.1\..*(up|down)_proj"}, [(1, "up_proj"), (1, "down_proj")]),
        ({"target_modules": ["q_proj"], "layers_to_transform": 1}, [(1, "q_proj")]),
        ({"target_modules": ["q_proj", "up_proj"], "exclude_modules": ["up_proj"],
          "layers_to_transform": [0]}, [(0, "q_proj")]),
        ({"target_modules": "all-linear", "exclude_modules": r".*\.0\..*|.*proj"}, []),
    ],
)  # fmt: skip
def test_target_modules(
    base: Path, tmp_path: Path, config: dict[str, Any], wanted: list[tuple[int, str]]
) -> None:
    settings = read_settings(write_adapter(tmp_path, {}, **config))
    found = [
        (target.product[0], name.rpartition(".")[2])
        for name, target in adapter_targets(read_config(base)).items()
        if settings.targeted(name, target.product[0])
    ]
    assert found == wanted


def test_masked_and_grouped_tokens_give_what_each_adapter_gives(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The three ways to compute a step's adapters, on rows of two adapters and of none."""
    model = loaded(base)
    folders = [
        random_adapter(tmp_path / "a", base, r=3, target_modules=["q_proj", "v_proj", "down_proj"]),
        random_adapter(tmp_path / "b", base, r=5, seed=4, target_modules=["k_proj", "v_proj"]),
    ]
    bank = AdapterBank(model, CPU)
    for number, folder in enumerate(folders, 1):
        bank.load(number, folder, bank.read(folder).digest)
    rows, lengths = np.array([1, 0, 2, 1]), np.array([2, 3, 1, 3])
    for most, kind in (64, MaskedAdapters), (0, GroupedAdapters):
        monkeypatch.setattr("engine.models.adapters.matrices.MASKED_TOKENS", most)
        step = bank.of_step(rows, lengths, lambda arrays: [torch.from_numpy(each) for each in arrays])
        assert isinstance(step, kind)
        for product, inputs, outputs in ("qkv", 32, 64), ("down", 48, 32), ("out", 32, 32):
            x, out = torch.randn(9, inputs), torch.randn(9, outputs)
            expected, at = out.clone(), 0
            for row, length in zip(rows, lengths, strict=True):
                if row:
                    only(model, folders[row - 1]).add(
                        0, product, x[at : at + length], expected[at : at + length]
                    )
                at += length
            step.add(0, product, x, out)
            assert torch.allclose(out, expected, atol=1e-5)


# What is refused


def damaged(change: Callable[[dict[str, Tensor]], object], **config: Any) -> Callable[[Path, Path], None]:
    def write(folder: Path, base: Path) -> None:
        tensors = adapter_tensors(base)
        change(tensors)
        write_adapter(folder, tensors, **config)

    return write


def configured(**config: Any) -> Callable[[Path, Path], None]:
    return damaged(lambda tensors: None, **config)


def text(name: str, content: str) -> Callable[[Path, Path], None]:
    def write(folder: Path, base: Path) -> None:
        random_adapter(folder, base)
        (folder / name).write_text(content)

    return write


def replaced(name: str, change: Callable[[Path], object]) -> Callable[[Path, Path], None]:
    def write(folder: Path, base: Path) -> None:
        change(random_adapter(folder, base) / name)

    return write


def to_device(file: Path) -> None:
    file.unlink()
    file.symlink_to("/dev/zero")


A, B = key(QUERY, "A"), key(QUERY, "B")
HEAD, OTHER = key("lm_head", "A"), A.replace(".0.", ".7.")
MAGNITUDE = A.replace("A.weight", "magnitude_vector")
HOSTILE: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "missing half": (damaged(lambda t: t.pop(B)), "q_proj.lora_B.weight is missing"),
    "wrong rank": (damaged(lambda t: t.update({A: t[A][:3].clone()})), r"A.weight is \[3, 32\]"),
    "wrong inputs": (damaged(lambda t: t.update({A: torch.zeros(4, 31)})), r"\[4, 31\], .* \[4, 32\]"),
    "wrong outputs": (damaged(lambda t: t.update({B: torch.zeros(33, 4)})), r"is \[33, 4\]"),
    "nan": (damaged(lambda t: t[B].fill_(float("nan"))), "layer 0 has numbers in qkv that are not finite"),
    "infinite": (damaged(lambda t: t[A][0].fill_(float("inf"))), "not finite"),
    "overflow": (damaged(lambda t: t[B].fill_(3e38)), "not finite"),
    "integers": (damaged(lambda t: t.update({A: t[A].to(torch.int32)})), "holds I32"),
    "a head": (damaged(lambda t: t.update({HEAD: torch.zeros(4, 32)})), "lm_head.lora_A.weight is not"),
    "other layers": (damaged(lambda t: t.update({OTHER: t[A]})), r"layers.7.* is not a LoRA half"),
    "magnitudes": (damaged(lambda t: t.update({MAGNITUDE: t[A]})), "magnitude_vector is not"),
    "not targeted": (configured(target_modules=["k_proj"]), "is not among the target_modules"),
    "no target": (configured(target_modules=["c_attn"]), "names no product of this model"),
    "targets missing": (configured(target_modules=None), "target_modules is missing"),
    "huge rank": (configured(r=1 << 40), "r is .* must be a whole number"),
    "zero rank": (configured(r=0), "r is 0"),
    "alpha": (configured(lora_alpha="8"), "lora_alpha is"),
    "bad pattern": (configured(target_modules="(q_proj"), "not a valid pattern"),
    "layers": (configured(layers_to_transform=["0"]), "layers_to_transform"),
    "not JSON": (text(CONFIG, "{"), "cannot be read as JSON"),
    "a list": (text(CONFIG, "[]"), "must hold a JSON object"),
    "long": (text(CONFIG, " " * 2**21), "too many for a configuration"),
    "truncated": (text(WEIGHTS, "abc"), "corrupt or truncated"),
    "pointer": (text(WEIGHTS, "version https://git-lfs"), "git-lfs pointer"),
    "no weights": (replaced(WEIGHTS, Path.unlink), "holds no adapter_model"),
    "no config": (replaced(CONFIG, Path.unlink), "holds no adapter_config"),
    "a device": (replaced(WEIGHTS, to_device), "holds no adapter_model"),
    "a device as config": (replaced(CONFIG, to_device), "holds no adapter_config"),
}  # fmt: skip
UNSUPPORTED: dict[str, Any] = {
    "peft_type": "IA3",
    "task_type": "SEQ_CLS",
    "bias": "all",
    "use_dora": True,
    "modules_to_save": ["lm_head"],
    "fan_in_fan_out": True,
    "lora_bias": True,
    "use_qalora": True,
    "layer_replication": [[0, 1]],
    "layers_pattern": "layers",
    "trainable_token_indices": [1],
    "target_parameters": ["experts.down_proj"],
    "alora_invocation_tokens": [1],
    "arrow_config": {"top_k": 1},
    "init_lora_weights": "pissa",
    "megatron_config": {"a": 1},
    "a_later_invention": 1,
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_or_broken_folder_is_refused(base: Path, tmp_path: Path, what: str) -> None:
    write, message = HOSTILE[what]
    write(tmp_path, base)
    with pytest.raises(BadCheckpoint, match=message) as refused:
        read(tmp_path, base)
    assert str(tmp_path) in str(refused.value)


def test_a_pattern_that_takes_forever(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.models.adapters.settings.MATCHING", 0.05)
    random_adapter(tmp_path, base)
    write_adapter(tmp_path, {}, target_modules=r"(.*)(.*)(.*)(.*)(.*)(.*)(.*)(.*)\1p(?!.)o")
    with pytest.raises(BadCheckpoint, match="takes too long to match"):
        read(tmp_path, base)


@pytest.mark.parametrize("field", UNSUPPORTED)
def test_other_parts_of_peft_are_refused_by_name(base: Path, tmp_path: Path, field: str) -> None:
    random_adapter(tmp_path, base, **{field: UNSUPPORTED[field]})
    with pytest.raises(UnsupportedModel, match=f"{field} is "):
        read(tmp_path, base)


def test_fields_at_their_defaults_are_not_refused(base: Path, tmp_path: Path) -> None:
    """As PEFT writes them."""
    off = {
        name: None if isinstance(value, str | list | dict) else False for name, value in UNSUPPORTED.items()
    }
    off |= {"peft_type": "LORA", "bias": "none", "init_lora_weights": True, "qalora_group_size": 16}
    random_adapter(tmp_path, base, **off, loftq_config={}, megatron_core="megatron.core")
    assert read(tmp_path, base).rank == 4


def test_experts_are_refused_and_attention_beside_them_is_not(tmp_path: Path) -> None:
    from tests.runner.small import make

    base = tmp_path / "moe"
    base.mkdir()
    make("qwen3_moe", base)
    adapter = random_adapter(tmp_path / "a", base, target_modules=list(LLAMA[:4]))
    assert read(adapter, base).rank == 4
    name = key("model.layers.0.mlp.experts.0.up_proj", "A")
    write_adapter(adapter, load_file(adapter / WEIGHTS) | {name: torch.zeros(4, 64)})
    with pytest.raises(BadCheckpoint, match=r"experts\.0\.up_proj.* is not a LoRA half"):
        read(adapter, base)


def test_a_folder_that_changes_after_it_was_read(base: Path, tmp_path: Path) -> None:
    bank = AdapterBank(loaded(base), CPU)
    digest = bank.read(random_adapter(tmp_path, base)).digest
    bank.load(1, tmp_path, digest)
    random_adapter(tmp_path, base, seed=1)
    with pytest.raises(BadInput, match="has changed since"):
        bank.load(2, tmp_path, digest)


@pytest.mark.parametrize("name", ["", "no/such/folder/here", "../x", "a--b", "\0", "x" * 200])
def test_names_that_are_neither_folders_nor_on_the_hub(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "empty").mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(ModelNotFound):
        find_adapter(name)


def test_errors_are_engine_errors_for_any_json(base: Path, tmp_path: Path) -> None:
    """No configuration ends in another exception."""
    random_adapter(tmp_path, base)
    usual = json.loads((tmp_path / CONFIG).read_text())
    for name in (*usual, "rank_pattern", "alpha_pattern", "use_rslora", "exclude_modules"):
        for value in (-1, 0.5, "x", [], [1], {}, {"q_proj": "x"}, {"(": 1}, True):
            (tmp_path / CONFIG).write_text(json.dumps(usual | {name: value}))
            with suppress(EngineError):
                read(tmp_path, base)
