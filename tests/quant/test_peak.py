"""Loading needs the memory of the weights and a layer; a change of scheme that of the larger of the two."""

import gc
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.api.config import ModelPlace
from engine.execution import weights as changed_weights
from engine.models.decoder import Decoder
from engine.models.registry import load_model
from tests.models.tiny import CONFIG, checkpoint
from tests.quant.changing import parts_changed
from tests.quant.test_switching import modules_and_bytes

SHAPE = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 6, "vocab_size": 100}
CHANGES = ("none", "int8", "int4", "none", "fp32", "int8", "fp32", "none")
HEADS_CHANGED = 4  # the head is in int8 beside layers in int8 and int4
TENSOR = 2 * 128 * 384  # bytes in bfloat16 of the largest
LAYER = 2 * 4 * 128 * 128 + 3 * TENSOR
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 16, "tie_word_embeddings": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("peak")
    tensors = checkpoint(made, **CONFIG | SHAPE | HEADS)
    save_file({name: each.bfloat16() for name, each in tensors.items()}, made / "model.safetensors")
    return made


def weights(model: torch.nn.Module) -> int:
    return sum({id(each): each.nbytes for each in (*model.parameters(), *model.buffers())}.values())


def test_a_change_needs_at_most_one_layer_more(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given_back = list[int]()
    monkeypatch.setattr(changed_weights, "trim_heap", lambda: given_back.append(modules_and_bytes()[1]))
    gc.collect()
    gc.freeze()  # objects of other tests are not scanned 42 times
    model = load_model(ModelPlace("it", folder), dtype="bfloat16")
    assert isinstance(model, Decoder)
    for old, new in pairwise(CHANGES):
        assert peak_of_change(model, old, new) < 1, (old, new)
    parts = (len(CHANGES) - 1) * SHAPE["num_hidden_layers"] + HEADS_CHANGED
    assert len(given_back) == parts, "memory was not released after every part"


@pytest.mark.parametrize("scheme", ["none", "int8", "int4"])
def test_loading_needs_at_most_a_layer_and_a_tensor_more(folder: Path, scheme: str) -> None:
    gc.collect()
    gc.freeze()
    before, held = modules_and_bytes()[1], [0]

    def progress(done: int, total: int) -> None:
        held.append(modules_and_bytes()[1] - before)

    model = load_model(ModelPlace("it", folder), dtype="bfloat16", quantization=scheme, progress=progress)
    assert max(held) <= weights(model) + LAYER + TENSOR, [each / LAYER for each in held]
    assert len(held) > 7 * SHAPE["num_hidden_layers"], "it is not called for each tensor"


def peak_of_change(model: Decoder, old: str, new: str) -> float:
    """Return the peak between two layers above the larger of the two schemes, in layers."""
    (_, before), had = modules_and_bytes(), weights(model)
    most = 0
    for _ in parts_changed(model, old, new):
        most = max(most, modules_and_bytes()[1] - before - max(weights(model) - had, 0))
    return most / LAYER
