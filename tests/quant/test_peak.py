"""A change of scheme takes the memory of the larger of the two, and a layer or two."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.config import ModelPlace
from engine.devices import give_back
from engine.models.decoder import Decoder
from engine.models.registry import load_model
from engine.quant.conversion import Conversion
from engine.quant.registry import named
from tests.models.tiny import CONFIG, checkpoint
from tests.quant.test_switching import anonymous

SHAPE = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 12, "vocab_size": 1000}
CHANGES = ("none", "int8", "int4", "none", "fp32", "int8", "fp32", "none")
LAYER = 2 * (4 * 512 * 512 + 3 * 512 * 1536)  # bytes in bfloat16
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("peak")
    tensors = checkpoint(made, **CONFIG | SHAPE | HEADS)
    save_file({name: each.bfloat16() for name, each in tensors.items()}, made / "model.safetensors")
    return made


def weights(model: torch.nn.Module) -> int:
    return sum({id(each): each.nbytes for each in (*model.parameters(), *model.buffers())}.values())


def test_what_layers_leave_is_given_back_between_them(folder: Path) -> None:
    """Else it stays with the process in holes that the next layer's tensors do not fit into."""
    model = load_model(ModelPlace("it", folder), dtype="bfloat16")
    assert isinstance(model, Decoder)
    for _ in range(2):  # in the first round, what libraries set up once is in it
        sizes = [(old, new, most_beside(model, old, new)) for old, new in pairwise(CHANGES)]
    assert max(most for _, _, most in sizes) < 1, sizes


def most_beside(model: Decoder, old: str, new: str) -> float:
    """How much more than the larger of the two there is between two layers, in layers."""
    give_back()
    before, had = anonymous(), weights(model)
    conversion = Conversion(model, named(old), named(new))
    most = 0
    while not conversion.over:
        conversion.advance()
        most = max(most, anonymous() - before - max(weights(model) - had, 0))
    return most / LAYER
