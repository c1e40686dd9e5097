"""Quantized weights on two ranks: those of a checkpoint are cut as stored, others are made by each rank."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.api.cache_spec import KV_SCHEMES
from engine.api.config import ModelPlace
from engine.api.errors import BadCheckpoint, BadInput
from engine.execution import weights as execution_weights
from engine.execution.weights import Weights
from engine.models import source
from engine.models.config_json import read_config
from engine.models.registry import load_model
from engine.quant.registry import named, names, why_not
from tests.cases import soak
from tests.distributed.test_collective import team, together
from tests.distributed.test_families import assert_shared, load, logits
from tests.distributed.threads import ranked
from tests.models.gguf.test_gguf import made
from tests.models.test_mxfp4 import published
from tests.models.tiny import CONFIG, checkpoint, write_config
from tests.quant.packers import Awq, Compressed, Fp4, Fp8, Gptq, write
from tests.runner.letters import VOCAB, byte_tokenizer
from tests.runner.small import ask, drain, engine_on, turn

__all__ = ["published"]  # a fixture

SHAPE = {"hidden_size": 64, "intermediate_size": 256, "head_dim": 64, "tie_word_embeddings": False}
PROMPT = [1, 5, 9, 30, 41]
MADE = [name for name in names() if why_not(name, torch.device("cpu"), torch.float32) is None]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    return checkpoint(tmp_path_factory.mktemp("plain"), vocab_size=VOCAB, **SHAPE)


def quantized(weights: dict[str, Tensor], folder: Path, packer: Any) -> Path:
    made = write(weights, CONFIG | SHAPE | {"vocab_size": VOCAB}, folder, packer)
    byte_tokenizer().save(str(made.quantized / "tokenizer.json"))
    return made.quantized


@pytest.mark.parametrize(
    "packer",
    [
        Gptq(),
        Gptq(group=-1, symmetric=False),
        Gptq(version=2),
        Awq(group=64),
        Compressed(),
        Compressed(bits=8, group=-1),
        Fp4(),
        *soak(Fp4(32)),
    ],
    ids=["gptq", "one group", "second version", "awq", "packed", "bytes", "nvfp4", "mxfp4"],
)
def test_numbers_are_cut_as_stored(weights: dict[str, Tensor], packer: Any, tmp_path: Path) -> None:
    assert_shared(quantized(weights, tmp_path, packer), 2)


@pytest.mark.parametrize(
    "packer",
    [Fp8(), Fp8("tensor"), Fp8("block", name="weight_scale_inv")],
    ids=["outputs", "tensor", "blocks"],
)
def test_fp8_is_cut_as_stored(weights: dict[str, Tensor], packer: Any, tmp_path: Path) -> None:
    """Where products round activations, each rank rounds its own part of them."""
    rounds = why_not("fp8", torch.device("cpu"), torch.float32) is None
    tolerance = {"atol": 0.05, "rtol": 0.05} if rounds else {}
    assert_shared(quantized(weights, tmp_path, packer), 2, **tolerance)


def test_a_gguf_file_is_cut_as_stored(tmp_path: Path) -> None:
    """Queries by heads, up by outputs, and the output of attention by inputs; most of the file is float32."""
    kinds = {"q_proj": "Q4_K", "up_proj": "Q4_0", "o_proj": "Q4_1", "v_proj": "Q8_0"}
    changes = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}

    def kind(name: str) -> str:
        return kinds.get(name.split(".")[-2], "F32")

    assert_shared(made(tmp_path, "llama", "Llama", changes, kind=kind)[0], 2)


def test_experts_in_mxfp4_are_cut(published: tuple[Path, Any]) -> None:
    assert_shared(published[0], 2)


@pytest.mark.parametrize(
    ("packer", "ranks", "problem"),
    [
        (Gptq(ordered=True), 2, r"o_proj.weight: its inputs are reordered \(desc_act\)"),
        (Gptq(group=128), 4, "inputs 0 to 64 of a rank are not whole groups of 128"),
        (Fp8("block", name="weight_scale_inv"), 4, "inputs 0 to 64 of a rank are not whole groups of 128"),
    ],
    ids=["ordered", "groups", "blocks"],
)
def test_what_cannot_be_cut_is_refused(
    weights: dict[str, Tensor], packer: Any, ranks: int, problem: str, tmp_path: Path
) -> None:
    folder = quantized(weights, tmp_path, packer)
    with pytest.raises(BadCheckpoint, match=problem):
        load(folder, team(ranks)[0])


@pytest.mark.parametrize("scheme", MADE)
def test_ranks_make_every_scheme_from_their_shares(scheme: str, tmp_path: Path) -> None:
    checkpoint(tmp_path, **SHAPE)
    one, other = together(team(2), lambda each: logits(load(tmp_path, each, scheme)))
    assert torch.equal(one, other)
    expected = logits(load(tmp_path, scheme=scheme))
    assert (one - expected).norm() < 0.1 * expected.norm()


def test_a_scheme_whose_groups_cross_the_ranks_is_refused(tmp_path: Path) -> None:
    checkpoint(tmp_path, **SHAPE | {"intermediate_size": 96})
    with pytest.raises(BadInput, match=r"each of 2 ranks has 48 inputs of .*down_proj.weight, .* of the 32"):
        load(tmp_path, team(2)[0], "int4-32")
    with pytest.raises(BadInput, match="4 query heads and 2 KV heads cannot be split over 5 ranks"):
        load_model(ModelPlace("tiny", tmp_path), collective=team(5)[0])


def test_a_scheme_can_be_refused_for_ranks_on_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def nothing(*_: Any) -> None:
        raise AssertionError("nothing is loaded")

    monkeypatch.setattr(source, "ON_GPU_RANKS", frozenset({"none", "int4-32"}))
    config, gpu = read_config(write_config(tmp_path, **SHAPE)), torch.device("cuda")
    alone, shared = (
        source.PlainSource(config, torch.bfloat16, gpu, nothing, nothing, ranks)
        for ranks in (None, team(2)[0])
    )
    assert alone.scheme("int8").name == "int8" and shared.scheme("int4-32").name == "int4-32"
    with pytest.raises(BadInput, match="'int8': ranks on GPUs do not support it; use one of int4-32, none"):
        shared.scheme("int8")
    monkeypatch.setattr(Weights, "_nbytes", lambda *_: 0)
    monkeypatch.setattr(execution_weights, "why_not", lambda *_: None)  # as on a GPU
    monkeypatch.setattr(source, "choose", lambda name, *_: named(name))
    model: Any = SimpleNamespace(requantizable=SimpleNamespace(source=shared))
    views = {each.name: each.why_not for each in Weights(model, "none", share=1).schemes("none", lambda _: 1)}
    assert views["int8"] == "ranks on GPUs do not support it" and views["int4-32"] == ""


def test_schemes_of_a_quantized_checkpoint_and_of_the_cache_change_at_run_time(
    weights: dict[str, Tensor], tmp_path: Path
) -> None:
    folder, found = quantized(weights, tmp_path, Gptq()), []
    with ranked(folder) as two:
        for engine in (two, engine_on(folder)):
            replies = []
            for kv in KV_SCHEMES[::2]:
                engine.set_kv_scheme(kv)
                replies.append(ask(engine, PROMPT)[1])
                drain(engine)
            engine.set_kv_scheme("none")
            for scheme, name in (("int8", "int8"), ("none", "int4")):  # the checkpoint's own
                _, output = ask(engine, PROMPT)
                turn(engine)
                engine.set_quantization(scheme)
                drain(engine)
                assert engine.runner.weights_scheme == name and output.finish and not output.error
            replies.append(ask(engine, PROMPT)[1])
            drain(engine)
            found.append([each.reply for each in replies])
    assert found[0] == found[1]
