"""The output head is quantized with the model; on a GPU only if it has its own weight (untied)."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from engine.api import events
from engine.api.config import EngineConfig, ModelPlace
from engine.execution.weights import Weights, nbytes
from engine.kernels.cpu.compiled.product import Int8Panels
from engine.kernels.cpu.int8_digits import Int8Digits
from engine.models.config_json import read_config
from engine.models.decoder import Decoder, Linear
from engine.models.find import find_model
from engine.models.loader import random_weights
from engine.models.registry import load_model
from engine.models.source import PlainSource
from engine.quant import int8
from engine.quant.int8 import Int8Table
from engine.quant.plain import Cast
from engine.quant.registry import SCHEMES, named, of_head
from engine.start import start
from tests.models.tiny import CONFIG, checkpoint
from tests.quant.changing import PROMPT, engine_on, finish_change, parts_changed, switch
from tests.quant.packers import Awq, Fp8, Gptq, write
from tests.quant.perplexity import perplexity
from tests.quant.test_quality import BOUNDS, perplexity_of
from tests.quant.test_schemes import CLOSE, relative_error, rows_of, skip_without_bitsandbytes, weight_of
from tests.quant.test_switching import failing_at, recorded_events, reply
from tests.runner.letters import VOCAB, byte_tokenizer
from tests.runner.small import GREEDY, ask, drain, turn

SHAPE = {"vocab_size": 600, "hidden_size": 64, "intermediate_size": 160, "head_dim": 16}
IN_INT8 = (Int8Table, Int8Digits, Int8Panels)
IN_BYTES = ("int8", "int4", "int4-32", "int4-64", "int4-128", "fp8")
HEAD = "lm_head.weight"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with an untied head, and weights scaled so that replies change with the head."""
    made = tmp_path_factory.mktemp("untied")
    tensors = checkpoint(made, **SHAPE | {"vocab_size": VOCAB})
    tensors = {name: each if "norm" in name else each * 4 for name, each in tensors.items()}
    save_file(tensors, made / "model.safetensors")
    byte_tokenizer().save(str(made / "tokenizer.json"))
    return made


def loaded(folder: Path, scheme: str = "none", **more: Any) -> Decoder:
    model = load_model(ModelPlace("it", folder), quantization=scheme, **more)
    assert isinstance(model, Decoder)
    return model


def weight_of_head(head: nn.Module, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the weight [outputs, inputs]. `dtype`: the model's."""
    if isinstance(head, IN_INT8):
        return head.dequantized()
    return head(torch.eye(SHAPE["hidden_size"], dtype=dtype)).T


class ThirdPartyScheme:
    """A third-party scheme that does not consider heads."""

    name = "plainer"
    kernels = "plain products"
    rounds_activations = False
    graphs = True

    def why_not(self, device: torch.device, dtype: torch.dtype) -> str | None:
        return None

    def nbytes(self, outputs: int, inputs: int, dtype: torch.dtype, device: torch.device) -> int:
        return outputs * inputs * dtype.itemsize

    def make(self, weight: Tensor, bias: Tensor | None) -> nn.Module:
        return Linear(nn.Parameter(weight.clone(), requires_grad=False), bias)  # type: ignore[arg-type]


def test_the_scheme_of_the_head() -> None:
    assert {name: of_head(named(name)).name for name in IN_BYTES} == dict.fromkeys(IN_BYTES, "int8")
    assert all(of_head(named(name)) is named(name) for name in ("none", "fp32", "bf16", "fp16"))
    assert {of_head(named(name)).name for name in ("bnb-int8", "bnb-nf4", "bnb-fp4")} == {"none"}
    assert of_head(ThirdPartyScheme()).name == "none"  # type: ignore[arg-type]


@pytest.mark.parametrize("scheme", ["int8", "int4", "int4-32", "int4-128"])
def test_a_head_is_int8_and_on_a_gpu_a_tied_one_stays_plain(tmp_path: Path, scheme: str) -> None:
    weight = checkpoint(tmp_path, **SHAPE)[HEAD]
    model = loaded(tmp_path, scheme)
    assert torch.equal(weight_of_head(model.head), named("int8").make(weight, None).dequantized())
    model.source.device = torch.device("cuda")
    assert model.source.of_head(named(scheme)).name == "int8"
    checkpoint(tmp_path, **SHAPE, tie_word_embeddings=True)
    model = loaded(tmp_path, scheme)
    assert torch.equal(weight_of_head(model.head), named("int8").make(model.embed, None).dequantized())
    model.source.device = torch.device("cuda")
    assert model.source.of_head(named(scheme)).name == "none"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_change_makes_a_tied_head_from_the_embedding(tmp_path: Path, dtype: str) -> None:
    checkpoint(tmp_path, **SHAPE, tie_word_embeddings=True)
    model, old = loaded(tmp_path, dtype=dtype), "none"
    for scheme, parts, quantized in (
        ("int8", 3, True), ("int4", 2, True), ("fp32", 3, False), ("bf16", 2, False),
    ):  # fmt: skip
        assert list(parts_changed(model, old, scheme)) == list(range(parts + 1))
        old = scheme
        assert isinstance(model.head, IN_INT8) is quantized
        expected = named("int8" if quantized else "none").make(model.embed, None)
        kind = model.embed.dtype
        assert torch.equal(weight_of_head(model.head, kind), weight_of_head(expected, kind))


def test_other_schemes_leave_the_head_or_change_its_dtype(tmp_path: Path) -> None:
    weight = checkpoint(tmp_path, **SHAPE)[HEAD]
    schemes: list[tuple[str, torch.dtype | None]] = [("none", None), ("fp32", None), ("bf16", torch.bfloat16)]
    for scheme, dtype in [*schemes, ("fp16", torch.float16)]:
        head = loaded(tmp_path, scheme).head
        assert (head.dtype if isinstance(head, Cast) else None) is dtype
        assert torch.equal(weight_of_head(head), weight if dtype is None else weight.to(dtype).float())
    skip_without_bitsandbytes()
    assert torch.equal(weight_of_head(loaded(tmp_path, "bnb-int8").head), weight)


def test_a_third_party_scheme_leaves_the_head_plain(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEMES, "plainer", ThirdPartyScheme())
    engine = engine_on(folder, dtype="float32")
    plain, head = reply(engine), _model(engine).head
    switch(engine, "plainer")
    assert _model(engine).head is head, "the head was read again"
    assert reply(engine) == plain
    switch(engine, "int8")
    switch(engine, "plainer")
    assert reply(engine) == plain


def _model(engine: Any) -> Decoder:
    model = engine.runner.model
    assert isinstance(model, Decoder)
    return model


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@torch.inference_mode()
def test_logits_equal_the_product_with_the_dequantized_head(tmp_path: Path, dtype: torch.dtype) -> None:
    weight = checkpoint(tmp_path, **SHAPE)[HEAD].to(dtype).float()
    model = loaded(tmp_path, "int8", dtype=str(dtype).removeprefix("torch."))
    half = weight.abs().amax(1) / 127 / 2
    for rows in (1, 8, 9, 40):
        hidden = rows_of(rows, 64, dtype)
        found = model.logits(hidden)
        assert found.dtype is torch.float32 and found.shape == (rows, 600)
        assert relative_error(found, hidden.double() @ weight_of_head(model.head).double().T) < CLOSE[dtype]
        apart = (found.double() - hidden.double() @ weight.double().T).abs()
        most = half.double() * hidden.double().abs().sum(1, keepdim=True)
        assert (apart <= most * 1.01 + 2 * CLOSE[dtype] * found.abs().max()).all()


@torch.inference_mode()
def test_a_large_head_is_quantized_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is bit-identical, as pieces are split by outputs."""
    weight = weight_of((1300, 96), torch.bfloat16)
    whole, many = Int8Table(weight, None), [rows_of(rows, 96, torch.bfloat16) for rows in (1, 3, 8)]
    expected = [whole(x) for x in many]
    monkeypatch.setattr(int8, "numbers_at_once", lambda device: 96 * 100)
    monkeypatch.setattr(int8, "TOGETHER", 2)
    cut = Int8Table(weight, None)
    assert torch.equal(cut.table, whole.table) and torch.equal(cut.scale, whole.scale)
    assert all(torch.equal(cut(x), reference) for x, reference in zip(many, expected, strict=True))


def test_a_change_frees_the_old_head_before_it_makes_the_new_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, seen, made = loaded(folder), list[str](), PlainSource.head

    def watched(self: PlainSource, scheme: Any) -> nn.Module:
        assert model.head is None, "both heads are in memory"
        seen.append(scheme.name)
        return made(self, scheme)

    monkeypatch.setattr(PlainSource, "head", watched)
    for old, new, parts in (("none", "int8", 3), ("int8", "int4", 2), ("int4", "none", 3)):
        for done in parts_changed(model, old, new):
            assert not seen or done == 3
        assert done == parts
        assert seen == ([] if parts == 2 else [new])
        seen.clear()


@pytest.mark.parametrize("after", [1, 2, 3])
def test_replacing_parts_back_restores_the_head(folder: Path, after: int) -> None:
    model = loaded(folder)
    before, weights = weight_of_head(model.head), Weights(model, "none", share=1.0)
    for part in range(after):
        weights.replace(part, "int8")
    assert isinstance(model.head, IN_INT8) is (after == 3)
    for part in reversed(range(after)):
        weights.replace(part, "none")
    assert weights.scheme is named("none") and torch.equal(weight_of_head(model.head), before)
    assert not any(isinstance(each, IN_INT8) for each in model.modules())


def test_a_failure_at_the_head_leaves_the_old_scheme(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_on(folder)
    plain, seen = reply(engine), recorded_events(engine)
    failing_at(monkeypatch, 2, OSError("gone"))
    engine.set_quantization("int4")
    finish_change(engine)
    assert engine.snapshot().quantization == "none"
    assert [event.error for event in seen if isinstance(event, events.Quantized)] == ["OSError: gone"]
    progress = [(event.done, event.total) for event in seen if isinstance(event, events.Quantizing)]
    assert progress == [(done, 3) for done in (0, 0, 1, 2, 3, 2, 1, 0)]
    assert reply(engine) == plain
    switch(engine, "int4")
    assert isinstance(_model(engine).head, IN_INT8)


@pytest.mark.parametrize("dummy", [False, True])
def test_changing_back_restores_the_weights(folder: Path, dummy: bool) -> None:
    """Also with dummy weights, which are generated again."""
    engine = engine_on(folder, dummy_weights=dummy)
    before, seen = weight_of_head(_model(engine).head, torch.bfloat16), reply(engine)
    for scheme in ("int4", "none") if dummy else ("int8", "int4", "fp32", "none"):
        switch(engine, scheme)
        other = engine_on(folder, dummy_weights=dummy, quantization=scheme)
        assert reply(engine) == reply(other), f"loading and changing to {scheme} give other weights"
    assert torch.equal(weight_of_head(_model(engine).head, torch.bfloat16), before)
    assert reply(engine) == seen


def test_dummy_numbers_depend_on_the_name(folder: Path) -> None:
    whole, made = Decoder(read_config(folder), torch.float32), loaded(folder, dummy=True)
    random_weights(whole, seed=0)
    assert torch.equal(weight_of_head(made.head), weight_of_head(whole.head)) and torch.equal(
        made.embed, whole.embed
    )


def test_the_reported_bytes_are_the_bytes_in_memory(tmp_path: Path) -> None:
    shape = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "vocab_size": 4096}
    checkpoint(tmp_path, **shape)
    for dtype in ("bfloat16", "float32"):
        model, present = loaded(tmp_path, dtype=dtype), "none"
        for scheme in ("int8", "int4", "fp32", "bf16", "none"):
            list(parts_changed(model, present, scheme))
            tensors = {id(each): each.nbytes for each in (*model.parameters(), *model.buffers())}
            assert sum(tensors.values()) == pytest.approx(nbytes(model, named(scheme)), rel=0.03), scheme
            present = scheme


@pytest.mark.parametrize("scheme", ["none", "int4"])
def test_the_size_with_the_scheme_in_use_is_the_weights_in_memory(scheme: str) -> None:
    """Of the built-in model, whose tied head a CPU with AMX packs beside the embedding."""
    shot = start(EngineConfig(model="pocket", device="cpu", blocks=64, quantization=scheme)).snapshot()
    views = {view.name: view.nbytes for view in shot.schemes}
    assert views[scheme] == pytest.approx(shot.memory["weights"], rel=0.001)


def test_other_requests_do_not_change_a_reply(folder: Path) -> None:
    """On both sides of the switch of kernels at eight rows."""
    prompts = [[7 * n % 250 + 5, *PROMPT[: 5 + n]] for n in range(12)]
    params = replace(GREEDY, max_tokens=12)
    for many in (5, 12):
        engine = engine_on(folder, quantization="int8", dtype="float32", prefix_cache=False)
        alone = []
        for prompt in prompts[:many]:
            _, output = ask(engine, prompt, params)
            drain(engine)
            alone.append(output.tokens)
        together = [ask(engine, prompt, params)[1] for prompt in prompts[:many]]
        turn(engine)
        drain(engine)
        assert [output.tokens for output in together] == alone
        assert len({tuple(each) for each in alone}) > many // 2, "too many replies are the same"


@torch.inference_mode()
def test_up_to_seven_other_rows_change_no_bit(folder: Path) -> None:
    model = loaded(folder, "int8", dtype="bfloat16")
    hidden = rows_of(8, 64, torch.bfloat16)
    whole = model.logits(hidden)
    assert all(torch.equal(model.logits(hidden[:rows]), whole[:rows]) for rows in range(1, 8))
    hidden[3] = torch.nan
    found = model.logits(hidden)
    assert found[3].isnan().all() and torch.equal(found[[0, 7]], whole[[0, 7]])


@pytest.mark.parametrize("packer", [Gptq(), Awq(), Fp8("block")])
def test_in_a_quantized_checkpoint_the_head_is_used_as_stored(tmp_path: Path, packer: Any) -> None:
    shape = SHAPE | {"tie_word_embeddings": False}
    weights = checkpoint(tmp_path, **shape)
    for number, also in enumerate(((), (HEAD,))):
        made = write(weights, CONFIG | shape, tmp_path / str(number), packer, also=also)
        reference = load_file(made.plain / "model.safetensors")[HEAD]
        own = loaded(made.quantized)
        torch.testing.assert_close(weight_of_head(own.head), reference, rtol=0, atol=1e-6)
        found = loaded(made.quantized, "int8")
        assert torch.equal(weight_of_head(found.head), weight_of_head(loaded(made.plain, "int8").head))
        assert list(parts_changed(own, "none", "int8")) == [0, 1, 2, 3]
        assert torch.equal(weight_of_head(own.head), weight_of_head(found.head))


@pytest.fixture(scope="module")
def untied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built-in model with an untied head, which has the embedding's numbers."""
    made, pocket = tmp_path_factory.mktemp("pocket"), find_model("pocket").folder
    tensors, config = (
        load_file(pocket / "model.safetensors"),
        json.loads((pocket / "config.json").read_text()),
    )
    tensors[HEAD] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, made / "model.safetensors")
    (made / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    return made


@pytest.mark.parametrize(
    ("scheme", "whole"),
    [
        ("int4-128", False),
        pytest.param("none", False, marks=pytest.mark.soak),
        # The bound of int8 is too narrow for one stretch of the text.
        *(
            pytest.param(scheme, True, marks=pytest.mark.soak)
            for scheme in ("none", "int8", "int4-32", "int4", "int4-128")
        ),
    ],
)
def test_perplexity_stays_within_the_bounds(untied: Path, scheme: str, whole: bool) -> None:
    found = perplexity(loaded(untied, scheme), whole)
    assert found == pytest.approx(perplexity_of("none", whole), rel=BOUNDS.get(scheme, 1e-6))


def test_on_a_gpu_the_head_is_dequantized_in_pieces_for_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain function replaces the dequantizing kernel."""
    pytest.importorskip("triton", reason="no Triton here")
    from engine.quant import gpu_products

    sizes = []

    def spread(numbers: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
        sizes.append(len(numbers))
        return ((numbers.float() - 128) * scale[:, None]).to(dtype)

    monkeypatch.setattr(gpu_products, "dequantize_int8", spread)
    monkeypatch.setattr(gpu_products, "DEQUANTIZE_ELEMENTS", 100 * 128 + 5)
    made = gpu_products.Int8Product(*int8.quantized(weight_of((250, 128), torch.float32)), None)
    x = rows_of(200, 128, torch.float32)
    assert relative_error(made(x), x.double() @ made.dequantized().double().T) < CLOSE[torch.float32]
    assert sizes == [100, 100, 50]
