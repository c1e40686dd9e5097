"""The linear layers of models that transformers runs, in every scheme, and their parts in fewer launches."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from engine.api.config import ModelPlace
from engine.api.errors import BadInput
from engine.execution.weights import Weights, nbytes
from engine.kernels import switches
from engine.models.find import find_model
from engine.models.load_request import LoadRequest
from engine.models.registry import bridged, load_model
from engine.quant.fp8 import Fp8
from tests.cases import soak
from tests.models.test_bridge import BRIDGED, SHAPE, reference
from tests.models.tiny import plain_attend
from tests.quant.changing import engine_on, switch
from tests.quant.perplexity import stories
from tests.runner.small import ask, drain, make

# Nats per token from the unquantized built-in model; its native decoder has the same distances.
BOUNDS = {"int8": 2e-4, "fp8": 1.5e-3, "int4": 2e-3, "int4-32": 1e-2, "fp32": 1e-4}


def loaded(place: ModelPlace, scheme: str = "none", **how: Any) -> Any:
    return bridged(LoadRequest(place=place, device=torch.device("cpu"), quantization=scheme, **how))


@torch.inference_mode()
def logits_of(model: Any, ids: Tensor) -> Tensor:
    attend = plain_attend(model.config.layers, None, model.sinks)
    found: Tensor = model.logits(model.forward(ids, torch.arange(len(ids)), attend))
    return found


def tiny(name: str, folder: Path, scheme: str = "none") -> Tensor:
    return logits_of(loaded(ModelPlace(name, folder), scheme), torch.arange(3, 33))


@cache
def of_stories(scheme: str) -> Tensor:
    return logits_of(loaded(find_model("pocket"), scheme), torch.tensor(stories()[0])).log_softmax(-1)


@pytest.mark.parametrize("scheme", ["int8", "int4", *soak("fp8", "int4-32", "fp32")])
def test_the_distance_from_the_exact_model_is_bounded(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fp8, "why_not", lambda *where: None)  # on a CPU it is just too slow to be offered
    exact, found = of_stories("none"), of_stories(scheme)
    distance = (exact.exp() * (exact - found)).sum(-1).mean()
    assert 0 < distance < BOUNDS[scheme]


@pytest.mark.parametrize(
    "name", ["gpt2", "opt", "neox", "phi3", "falcon-new", *soak("gptj", "olmo2", "gemma2")]
)
def test_every_linear_layer_is_replaced(name: str, tmp_path: Path) -> None:
    """Conv1D of GPT-2, whose weights are transposed, too. Logits are close, and the weights smaller."""
    reference(*BRIDGED[name], tmp_path)
    model = loaded(ModelPlace(name, tmp_path), "int8")
    left = [each for each in model.trunk.modules() if isinstance(each, nn.Linear)]
    assert all(each.weight.shape[1] == 24 or each.weight.shape[0] == 24 for each in left), "OPT's projections"
    exact, found = tiny(name, tmp_path), tiny(name, tmp_path, "int8")
    assert not torch.equal(exact, found)
    assert (exact - found).norm() < 0.03 * exact.norm()
    products = model.requantizable
    held = sum({id(each): each.nbytes for each in (*model.parameters(), *model.buffers())}.values())
    assert nbytes(products, products.scheme("int8")) < nbytes(products, products.scheme("none"))
    assert held < nbytes(products, products.scheme("none"))


def test_a_head_that_is_the_embedding_stays(tmp_path: Path) -> None:
    reference("GPT2", {}, tmp_path)
    model = loaded(ModelPlace("gpt2", tmp_path), "int8")
    assert model.model.lm_head.weight is model.model.transformer.wte.weight
    reference("GPTNeoX", {"tie_word_embeddings": False}, tmp_path)
    model = loaded(ModelPlace("neox", tmp_path), "int8")
    assert not isinstance(model.model.get_output_embeddings(), nn.Linear)


@pytest.mark.parametrize("name", ["gpt2", "neox"])
def test_a_change_starts_from_the_exact_weights(name: str, tmp_path: Path) -> None:
    """Also one after a start in a scheme."""
    reference(*BRIDGED[name], tmp_path)
    exact, rounded = tiny(name, tmp_path), tiny(name, tmp_path, "int8")
    model = loaded(ModelPlace(name, tmp_path), "int4-32")
    weights = Weights(model, "int4-32", share=1.0)
    for scheme, expected in (("int8", rounded), ("none", exact), ("int8", rounded)):
        plan = weights.plan(scheme, lambda more: None)
        for part in range(plan.parts):
            weights.replace(part, scheme)
        weights.settle(scheme)
        assert torch.equal(logits_of(model, torch.arange(3, 33)), expected)


def test_an_engine_changes_while_a_chat_runs(tmp_path: Path) -> None:
    make("llama", tmp_path)  # for its tokenizer
    reference("Phi", {"vocab_size": 300, "max_position_embeddings": 200}, tmp_path)
    engine = engine_on(tmp_path)
    _, output = ask(engine, range(5, 40))
    for scheme in ("int8", "none"):
        switch(engine, scheme)
    drain(engine)
    assert len(output.tokens) == 24


def test_weights_in_another_form_are_only_changed_at_the_start(tmp_path: Path) -> None:
    reference("GPT2", {}, tmp_path)
    model, name = loaded(ModelPlace("gpt2", tmp_path)), "transformer.h.1.mlp.c_fc.weight"
    model.requantizable.check()
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[name][-1] += 1
    products = type(model.products)(model.model, model.trunk, _saved(tensors, tmp_path / "other"))
    with pytest.raises(BadInput, match=f"other runs through transformers and holds {name} in another form"):
        products.check()


def _saved(tensors: dict[str, Tensor], folder: Path) -> Path:
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_random_weights_are_only_changed_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SHAPE | {"model_type": "gpt2"}))
    place = ModelPlace("gpt2", tmp_path)
    weights = Weights(load_model(place, dummy=True, quantization="int8"), "int8", share=1.0)
    with pytest.raises(BadInput, match="the weights are random"):
        weights.plan("none", lambda more: None)


def test_code_that_reads_weights_itself_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.gpt2.modeling_gpt2 import GPT2MLP

    plain = GPT2MLP.forward
    monkeypatch.setattr(GPT2MLP, "forward", lambda self, x: plain(self, x.to(self.c_fc.weight.dtype)))
    reference("GPT2", {}, tmp_path)
    reason = r"quantization 'int8': .* does not only call its linear layers \(.*'weight'"
    with pytest.raises(BadInput, match=reason):
        loaded(ModelPlace("gpt2", tmp_path), "int8")
    weights = Weights(loaded(ModelPlace("gpt2", tmp_path)), "none", share=1.0)
    reasons = {each.name: each.why_not for each in weights.schemes("none", lambda more: None)}
    assert reasons["none"] == "" and reasons["int8"]


def test_norms_with_other_code_stay_as_they_are() -> None:
    from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
    from transformers.models.helium.modeling_helium import HeliumRMSNorm
    from transformers.models.t5.modeling_t5 import T5LayerNorm

    from engine.models.bridge.short import shorten_parts

    for each in (Gemma2RMSNorm(8), HeliumRMSNorm(8), T5LayerNorm(8)):
        assert shorten_parts(each) == 0 and "forward" not in vars(each)


def test_parts_and_products_in_one_launch_change_nothing_on_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Norms, rotations and activations of Apertus are replaced, each with the model's own code behind it."""
    reference(*BRIDGED["apertus"], tmp_path)
    expected = tiny("apertus", tmp_path)
    monkeypatch.setattr(switches, "SHORT_PARTS", True)
    monkeypatch.setattr(switches, "SHORT_PRODUCTS", True)
    model = loaded(ModelPlace("apertus", tmp_path))
    names = ["RMSNorm"] * 9 + ["XIELUActivation"] * 2 + ["Attention"] * 2 + ["Linear"] * 12
    found = [
        type(each).__name__.removeprefix("Apertus") for each in model.modules() if "forward" in vars(each)
    ]
    assert sorted(found) == sorted(names)
    assert torch.equal(logits_of(model, torch.arange(3, 33)), expected)
