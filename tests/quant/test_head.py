"""The product with the vocabulary goes along with a scheme, where the model has a table of its own for it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from engine.api import events
from engine.api.config import ModelPlace
from engine.execution.weights import nbytes
from engine.models.config_json import read_config
from engine.models.decoder import Decoder, Linear
from engine.models.find import find_model
from engine.models.loader import random_weights
from engine.models.registry import load_model
from engine.models.source import PlainSource
from engine.quant import int8
from engine.quant.conversion import Conversion
from engine.quant.int8 import Int8Table
from engine.quant.plain import Cast
from engine.quant.registry import SCHEMES, named, of_head
from tests.models.tiny import CONFIG, checkpoint
from tests.quant.changing import PROMPT, engine_on, finish_change, switch
from tests.quant.packers import Awq, Fp8, Gptq, write
from tests.quant.perplexity import perplexity
from tests.quant.test_quality import BOUNDS, of
from tests.quant.test_schemes import CLOSE, off, rows_of, skip_without_bitsandbytes, weight_of
from tests.quant.test_switching import failing_at, heard_of, reply
from tests.runner.letters import VOCAB, byte_tokenizer
from tests.runner.small import GREEDY, ask, drain, turn

SHAPE = {"vocab_size": 600, "hidden_size": 64, "intermediate_size": 160, "head_dim": 16}
IN_BYTES = ("int8", "int4", "int4-32", "int4-64", "int4-128", "fp8")
HEAD = "lm_head.weight"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a head of its own, and weights that lead to replies which change with it."""
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


def kept(head: nn.Module, dtype: torch.dtype = torch.float32) -> Tensor:
    """[outputs, inputs]. `dtype`: of the model."""
    if isinstance(head, Int8Table):
        return head.dequantized()
    return head(torch.eye(SHAPE["hidden_size"], dtype=dtype)).T


class Plainer:
    """A scheme of somebody's who has never heard of heads."""

    name = "plainer"
    kernels = "plain products"
    rounds_activations = False
    graphs = True

    def why_not(self, device: torch.device, dtype: torch.dtype) -> str | None:
        return None

    def nbytes(self, outputs: int, inputs: int, dtype: torch.dtype) -> int:
        return outputs * inputs * dtype.itemsize

    def make(self, weight: Tensor, bias: Tensor | None) -> nn.Module:
        return Linear(nn.Parameter(weight.clone(), requires_grad=False), bias)  # type: ignore[arg-type]


def test_each_scheme_says_what_keeps_the_head() -> None:
    assert {name: of_head(named(name)).name for name in IN_BYTES} == dict.fromkeys(IN_BYTES, "int8")
    assert all(of_head(named(name)) is named(name) for name in ("none", "fp32", "bf16", "fp16"))
    assert {of_head(named(name)).name for name in ("bnb-int8", "bnb-nf4", "bnb-fp4")} == {"none"}
    assert of_head(Plainer()).name == "none"  # type: ignore[arg-type]


@pytest.mark.parametrize("scheme", ["int8", "int4", "int4-32", "int4-128"])
def test_it_is_in_bytes_and_a_tied_one_stays(tmp_path: Path, scheme: str) -> None:
    weight = checkpoint(tmp_path, **SHAPE)[HEAD]
    head = loaded(tmp_path, scheme).head
    assert torch.equal(kept(head), named("int8").make(weight, None).dequantized())
    checkpoint(tmp_path, **SHAPE, tie_word_embeddings=True)
    model = loaded(tmp_path, scheme)
    assert torch.equal(model.head(torch.eye(64)).T, model.embed)


def test_others_have_it_as_it_is_or_in_their_type(tmp_path: Path) -> None:
    weight = checkpoint(tmp_path, **SHAPE)[HEAD]
    schemes: list[tuple[str, torch.dtype | None]] = [("none", None), ("fp32", None), ("bf16", torch.bfloat16)]
    for scheme, dtype in [*schemes, ("fp16", torch.float16)]:
        head = loaded(tmp_path, scheme).head
        assert (head.dtype if isinstance(head, Cast) else None) is dtype
        assert torch.equal(kept(head), weight if dtype is None else weight.to(dtype).float())
    skip_without_bitsandbytes()
    assert torch.equal(kept(loaded(tmp_path, "bnb-int8").head), weight)


def test_a_scheme_of_others_leaves_it_plain(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEMES, "plainer", Plainer())
    engine = engine_on(folder, dtype="float32")
    plain, head = reply(engine), _model(engine).head
    switch(engine, "plainer")
    assert _model(engine).head is head, "nothing had to be read"
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
def test_logits_are_the_product_with_what_is_kept(tmp_path: Path, dtype: torch.dtype) -> None:
    weight = checkpoint(tmp_path, **SHAPE)[HEAD].to(dtype).float()
    model = loaded(tmp_path, "int8", dtype=str(dtype).removeprefix("torch."))
    half = weight.abs().amax(1) / 127 / 2
    for rows in (1, 8, 9, 40):
        hidden = rows_of(rows, 64, dtype)
        found = model.logits(hidden)
        assert found.dtype is torch.float32 and found.shape == (rows, 600)
        assert off(found, hidden.double() @ kept(model.head).double().T) < CLOSE[dtype]
        apart = (found.double() - hidden.double() @ weight.double().T).abs()
        most = half.double() * hidden.double().abs().sum(1, keepdim=True)
        assert (apart <= most * 1.01 + 2 * CLOSE[dtype] * found.abs().max()).all()


@torch.inference_mode()
def test_a_large_one_is_taken_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the same bits: pieces are of outputs."""
    weight = weight_of((1300, 96), torch.bfloat16)
    whole, many = Int8Table(weight, None), [rows_of(rows, 96, torch.bfloat16) for rows in (1, 3, 8)]
    expected = [whole(x) for x in many]
    monkeypatch.setattr(int8, "PIECE", 96 * 100)
    monkeypatch.setattr(int8, "TOGETHER", 2)
    cut = Int8Table(weight, None)
    assert torch.equal(cut.table, whole.table) and torch.equal(cut.scale, whole.scale)
    assert all(torch.equal(cut(x), wanted) for x, wanted in zip(many, expected, strict=True))


def test_a_change_takes_it_last_and_lets_go_of_it_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, said, made = loaded(folder), list[str](), PlainSource.head

    def watched(self: PlainSource, scheme: Any) -> nn.Module:
        assert model.head is None, "both forms are there"
        said.append(scheme.name)
        return made(self, scheme)

    monkeypatch.setattr(PlainSource, "head", watched)
    none, eight, four = named("none"), named("int8"), named("int4")
    for old, new, parts in ((none, eight, 3), (eight, four, 2), (four, none, 3)):
        conversion = Conversion(model, old, new)
        assert conversion.total == parts
        while not conversion.over:
            assert not said or conversion.done == 2
            conversion.advance()
        assert said == ([] if parts == 2 else [new.name])
        said.clear()


@pytest.mark.parametrize("after", [1, 2, 3])
def test_cancelled_before_or_behind_it_all_is_as_before(folder: Path, after: int) -> None:
    model = loaded(folder)
    before = kept(model.head)
    conversion = Conversion(model, named("none"), named("int8"))
    for _ in range(after):
        conversion.advance()
    assert isinstance(model.head, Int8Table) is (after == 3)
    conversion.cancel("enough")
    while not conversion.over:
        conversion.advance()
    assert conversion.done == 0 and torch.equal(kept(model.head), before)
    assert not any(isinstance(each, Int8Table) for each in model.modules())


def test_a_failure_there_leaves_the_old_scheme(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_on(folder)
    plain, said = reply(engine), heard_of(engine)
    failing_at(monkeypatch, 2, OSError("gone"))
    engine.set_quantization("int4")
    finish_change(engine)
    assert engine.snapshot().quantization == "none"
    assert [event.error for event in said if isinstance(event, events.Quantized)] == ["OSError: gone"]
    progress = [(event.done, event.total) for event in said if isinstance(event, events.Quantizing)]
    assert progress == [(done, 3) for done in (0, 0, 1, 2, 3, 2, 1, 0)]
    assert reply(engine) == plain
    switch(engine, "int4")
    assert isinstance(_model(engine).head, Int8Table)


@pytest.mark.parametrize("dummy", [False, True])
def test_the_way_back_leads_to_what_was(folder: Path, dummy: bool) -> None:
    """From random weights, too, which are made anew."""
    engine = engine_on(folder, dummy_weights=dummy)
    before, said = kept(_model(engine).head, torch.bfloat16), reply(engine)
    for scheme in ("int8", "int4", "fp32", "none"):
        switch(engine, scheme)
        other = engine_on(folder, dummy_weights=dummy, quantization=scheme)
        assert reply(engine) == reply(other), f"loading and changing to {scheme} give other weights"
    assert torch.equal(kept(_model(engine).head, torch.bfloat16), before)
    assert reply(engine) == said


def test_random_numbers_are_those_of_its_name(folder: Path) -> None:
    whole, made = Decoder(read_config(folder), torch.float32), loaded(folder, dummy=True)
    random_weights(whole, seed=0)
    assert torch.equal(kept(made.head), kept(whole.head)) and torch.equal(made.embed, whole.embed)


def test_what_it_says_of_bytes_is_what_there_is(tmp_path: Path) -> None:
    shape = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "vocab_size": 4096}
    checkpoint(tmp_path, **shape)
    for dtype in ("bfloat16", "float32"):
        model, present = loaded(tmp_path, dtype=dtype), named("none")
        for scheme in map(named, ("int8", "int4", "fp32", "bf16", "none")):
            conversion = Conversion(model, present, scheme)
            while not conversion.over:
                conversion.advance()
            tensors = {id(each): each.nbytes for each in (*model.parameters(), *model.buffers())}
            assert sum(tensors.values()) == pytest.approx(nbytes(model, scheme), rel=0.03), scheme.name
            present = scheme


def test_company_changes_no_reply(folder: Path) -> None:
    """On both sides of where kernels change: eight rows."""
    prompts = [[7 * n % 250 + 5, *PROMPT[: 5 + n]] for n in range(12)]
    params = replace(GREEDY, max_tokens=12)
    for many in (5, 12):
        engine = engine_on(folder, quantization="int8", dtype="float32", prefix_cache=False)
        alone = []
        for prompt in prompts[:many]:
            _, heard = ask(engine, prompt, params)
            drain(engine)
            alone.append(heard.tokens)
        together = [ask(engine, prompt, params)[1] for prompt in prompts[:many]]
        turn(engine)
        drain(engine)
        assert [heard.tokens for heard in together] == alone
        assert len({tuple(each) for each in alone}) > many // 2, "replies that are all the same prove little"


@torch.inference_mode()
def test_company_of_seven_changes_no_bit(folder: Path) -> None:
    model = loaded(folder, "int8", dtype="bfloat16")
    hidden = rows_of(8, 64, torch.bfloat16)
    whole = model.logits(hidden)
    assert all(torch.equal(model.logits(hidden[:rows]), whole[:rows]) for rows in range(1, 8))
    hidden[3] = torch.nan
    found = model.logits(hidden)
    assert found[3].isnan().all() and torch.equal(found[[0, 7]], whole[[0, 7]])


@pytest.mark.parametrize("packer", [Gptq(), Awq(), Fp8("block")])
def test_beside_a_form_of_others_it_stays_as_the_file_has_it(tmp_path: Path, packer: Any) -> None:
    shape = SHAPE | {"tie_word_embeddings": False}
    weights = checkpoint(tmp_path, **shape)
    for number, also in enumerate(((), (HEAD,))):
        made = write(weights, CONFIG | shape, tmp_path / str(number), packer, also=also)
        wanted = load_file(made.plain / "model.safetensors")[HEAD]
        own = loaded(made.quantized)
        assert own.source is not None
        torch.testing.assert_close(kept(own.head), wanted, rtol=0, atol=1e-6)
        found = loaded(made.quantized, "int8")
        assert torch.equal(kept(found.head), kept(loaded(made.plain, "int8").head))
        conversion = Conversion(own, own.source.scheme("none"), named("int8"))
        assert conversion.total == 3
        while not conversion.over:
            conversion.advance()
        assert torch.equal(kept(own.head), kept(found.head))


@pytest.fixture(scope="module")
def untied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built-in model with a head of its own, which has the embedding's numbers."""
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
        *((scheme, False) for scheme in ("none", "int8", "int4-32", "int4", "int4-128")),
        *(
            pytest.param(scheme, True, marks=pytest.mark.soak)
            for scheme in ("none", "int8", "int4-32", "int4", "int4-128")
        ),
    ],
)
def test_perplexity_stays_within_the_bounds(untied: Path, scheme: str, whole: bool) -> None:
    found = perplexity(loaded(untied, scheme), whole)
    assert found == pytest.approx(of("none", whole), rel=BOUNDS.get(scheme, 1e-6))


def test_on_a_gpu_many_rows_have_it_spread_out_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """What spreads it is a kernel of its own; here a plain one stands for it."""
    pytest.importorskip("triton", reason="no Triton here")
    from engine.quant import gpu_products

    sizes = []

    def spread(numbers: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
        sizes.append(len(numbers))
        return ((numbers.float() - 128) * scale[:, None]).to(dtype)

    monkeypatch.setattr(gpu_products, "dequantize_int8", spread)
    monkeypatch.setattr(gpu_products, "SPREAD", 100 * 128 + 5)
    made = gpu_products.Int8Product(*int8.quantized(weight_of((250, 128), torch.float32)), None)
    x = rows_of(200, 128, torch.float32)
    assert off(made(x), x.double() @ made.dequantized().double().T) < CLOSE[torch.float32]
    assert sizes == [100, 100, 50]
