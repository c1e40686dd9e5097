"""Checkpoints of 4-bit floats (nvfp4, mxfp4), and of several formats at once: read and run as stored."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.api.config import ModelPlace
from engine.api.errors import BadCheckpoint
from engine.execution.weights import nbytes
from engine.models.decoder import Decoder
from engine.models.registry import load_model
from engine.models.support import support
from engine.quant.formats import stored
from engine.quant.fp4 import FEW, Fp4Table
from engine.quant.fp4 import nbytes as fp4_bytes
from engine.quant.packing import Packing
from tests.cases import one_of
from tests.models.families import reference
from tests.models.tiny import CONFIG, checkpoint, write_config
from tests.quant.packers import Compressed, Fp4, Fp8, Mixed, Packed, write
from tests.quant.test_checkpoints import UP, loaded, logits, refusal, weight_of

SHAPE = {"hidden_size": 64, "intermediate_size": 160, "head_dim": 16, "tie_word_embeddings": False}
ALONE: dict[str, Any] = {
    "nvfp4": Fp4(static=True),
    "nvfp4 of modelopt": Fp4(modelopt=True, static=True),
    "mxfp4": Fp4(32),
}
MIXED: dict[str, Any] = {
    "floats": Mixed((Fp4(), Fp8(compressed=True), Fp4(32))),
    "floats of modelopt": Mixed((Fp4(modelopt=True), Fp8("tensor", modelopt=True)), modelopt=True),
    "integers": Mixed((Compressed(), Compressed(8, -1), Compressed(group=64, symmetric=False))),
    "all": Mixed((Fp4(), Compressed(), Fp8(compressed=True), Compressed(8, -1, packed=False))),
}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    return checkpoint(tmp_path_factory.mktemp("plain"), **SHAPE)


@pytest.mark.parametrize("packer", ALONE.values(), ids=ALONE)
def test_floats_are_used_as_stored(weights: dict[str, Tensor], tmp_path: Path, packer: Fp4) -> None:
    made = write(weights, CONFIG | SHAPE, tmp_path, packer, but=("1.mlp.down_proj",))
    model = loaded(made.quantized)
    assert model.source is not None and model.source.scheme("none").name == "none"
    for name, weight in made.products(0):
        product = model.layers[0].get_submodule(name)
        assert isinstance(product, Fp4Table)
        torch.testing.assert_close(product.dequantized(), weight, rtol=1e-6, atol=0)
    down = weights["model.layers.1.mlp.down_proj.weight"]
    assert torch.equal(weight_of(model.layers[1].feed_forward.down, 160), down)
    torch.testing.assert_close(logits(model), logits(loaded(made.plain)), rtol=0, atol=1e-4)
    other = [logits(loaded(folder, "fp32")) for folder in (made.quantized, made.plain)]
    torch.testing.assert_close(*other, rtol=0, atol=1e-5)


@pytest.mark.parametrize("packer", one_of(2, MIXED.values()), ids=MIXED)
@pytest.mark.parametrize("eight", [False, True])
def test_formats_may_be_mixed(
    weights: dict[str, Tensor], tmp_path: Path, packer: Mixed, eight: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`eight`: where 8-bit floats are multiplied, which also runs on a CPU, but rounds activations."""
    if eight:
        monkeypatch.setattr("engine.quant.fp8.Fp8.why_not", lambda self, device, dtype: None)
    made = write(weights, CONFIG | SHAPE, tmp_path, packer, but=("0.self_attn.k_proj",))
    model = loaded(made.quantized)
    found, plain = logits(model), logits(loaded(made.plain))
    assert model.source is not None
    rounds = eight and any(isinstance(each, Fp8) for each in packer.packers)
    assert model.source.scheme("none").rounds_activations is rounds
    if rounds:
        assert 0 < float((found - plain).norm() / plain.norm()) < 0.05
    else:
        torch.testing.assert_close(found, plain, rtol=0, atol=1e-4)
    other = [logits(loaded(folder, "fp32")) for folder in (made.quantized, made.plain)]
    torch.testing.assert_close(*other, rtol=0, atol=1e-5)


@pytest.mark.parametrize("group", [16, 32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_every_number_of_rows_multiplies_the_same_weight(group: int, dtype: torch.dtype) -> None:
    """With more outputs than a block has, with zeros, and with the smallest scales."""
    draw = torch.Generator().manual_seed(group)
    weight = torch.randn(300, 96, generator=draw) * torch.logspace(-4, 0, 300)[:, None]
    weight[7] = 0
    packed = Fp4(group)(weight, 0)
    product = Fp4Table(stored(Packing("fp4", group), packed.tensors, 96), torch.arange(300.0).to(dtype))
    torch.testing.assert_close(product.dequantized(), packed.weight, rtol=1e-6, atol=1e-12)
    x = torch.randn(FEW + 1, 96, generator=draw).to(dtype)
    expected = x.double() @ packed.weight.double().T + torch.arange(300.0)
    least = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    for rows in (1, FEW, FEW + 1):
        found = product(x[:rows]).double()
        assert float((found - expected[:rows]).norm() / expected[:rows].norm()) < least


@pytest.mark.cuda
@pytest.mark.parametrize("packer", ALONE.values(), ids=ALONE)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@torch.inference_mode()
def test_on_a_gpu(weights: dict[str, Tensor], tmp_path: Path, packer: Fp4, dtype: Any) -> None:
    """Few rows have a kernel that reads the bytes of the file, many a dequantized weight."""
    made = write(weights, CONFIG | SHAPE, tmp_path, packer)
    model = load_model(ModelPlace("it", made.quantized), device="cuda", dtype=dtype)
    assert isinstance(model, Decoder)
    least = {"bfloat16": 0.005, "float16": 0.001, "float32": 1e-5}[dtype]
    for name, weight in made.products(0):
        product = model.layers[0].get_submodule(name)
        torch.testing.assert_close(product.dequantized().cpu(), weight, rtol=1e-5, atol=1e-9)
        for rows in (1, 5, 200, 300):
            x = torch.randn(rows, weight.shape[1], device="cuda", dtype=getattr(torch, dtype))
            expected = x.double() @ weight.cuda().double().T
            found = product(x).double()
            assert float((found - expected).norm() / expected.norm()) < least, (name, rows)


def test_its_size_is_a_byte_per_number_and_the_scales(weights: dict[str, Tensor], tmp_path: Path) -> None:
    """A number takes half a byte in the file, and on a GPU. One product is stored plain here."""
    made = write(weights, CONFIG | SHAPE, tmp_path, Fp4(), but=("0.mlp.up_proj",))
    model = loaded(made.quantized)
    assert model.source is not None
    own, plain = (nbytes(model, model.source.scheme(name)) for name in ("none", "fp32"))
    numbers = sum(each.weight.numel() for each in made.packed.values())
    cpu = torch.device("cpu")
    kept = sum(fp4_bytes(*each.weight.shape, 16, cpu) for each in made.packed.values())
    assert plain - own == pytest.approx(4 * numbers - kept, abs=64)
    product = Fp4Table(stored(Packing("fp4", 16), Fp4()(torch.randn(512, 64), 0).tensors, 64), None)
    kept = sum(each.nbytes for each in product.buffers())
    assert kept == 512 * 64 + 512 * 64 // 16 + 512 * 4 + 2 * 64 * 8 == fp4_bytes(512, 64, 16, cpu)


def test_a_separate_file_of_modelopt(weights: dict[str, Tensor], tmp_path: Path) -> None:
    made = write(weights, CONFIG | SHAPE, tmp_path, Fp4(modelopt=True))
    write_config(made.quantized, **SHAPE)
    assert "down_proj.weight is [64, 80], the config requires [64, 160]" in refusal(made.quantized)
    details = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16}
    described = {"producer": {"name": "modelopt", "version": "0.40"}, "quantization": details}
    (made.quantized / "hf_quant_config.json").write_text(json.dumps(described))
    assert support(made.quantized).trouble == ""
    torch.testing.assert_close(logits(loaded(made.quantized)), logits(loaded(made.plain)), rtol=0, atol=1e-4)
    write_config(made.quantized, **SHAPE, model_type="phi")
    assert "it is quantized with modelopt" in support(made.quantized).trouble


GROUP = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
NV = "nvfp4-pack-quantized"
OPT = {"quant_method": "modelopt", "quant_algo": "NVFP4"}


def compressed(form: str = NV, **weights: Any) -> dict[str, Any]:
    groups = {"group_0": {"weights": GROUP | weights}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups}


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (compressed(num_bits=8), "weights.num_bits is 8; only floats of 4 bits"),
        (compressed(type="int"), "weights.num_bits is 4; only floats of 4 bits"),
        (compressed(group_size=32), "weights.group_size is 32; only 16"),
        (compressed("mxfp4-pack-quantized"), "weights.group_size is 16; only 32"),
        (compressed(strategy="channel"), 'weights.strategy is "channel"; only group and tensor_group'),
        (compressed(symmetric=False), "weights.symmetric is false; of floats"),
        (compressed("mxfp8-quantized"), 'format is "mxfp8-quantized"; of compressed-tensors, only'),
        (compressed("mixed-precision"), "group_0.format is null; of compressed-tensors, only"),
        (OPT | {"quant_algo": "NVFP4_AWQ"}, 'quant_algo is "NVFP4_AWQ"; of modelopt, only FP8'),
        (OPT | {"quant_algo": "W4A16_AWQ"}, 'quant_algo is "W4A16_AWQ"; of modelopt'),
        (OPT | {"quant_algo": None}, "quant_algo is null; of modelopt"),
        (OPT | {"group_size": 32}, "group_size is 32; of NVFP4, only 16"),
        (OPT | {"quant_algo": "MIXED_PRECISION"}, "quantized_layers is null; it does not describe"),
        (
            OPT | {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {"quant_algo": "INT8"}}},
            'quantized_layers.a.quant_algo is "INT8"; of modelopt',
        ),
        (OPT | {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": 8}}, "quantized_layers.a is 8"),
    ],
)
def test_settings_that_cannot_be_read_are_named(tmp_path: Path, config: dict[str, Any], problem: str) -> None:
    checkpoint(tmp_path)
    write_config(tmp_path, quantization_config=config)
    assert problem in support(tmp_path).trouble


def bytes_of(*shape: int, value: int, kind: torch.dtype = torch.float8_e4m3fn) -> Tensor:
    return torch.full(shape, value, dtype=torch.uint8).view(kind)


@pytest.fixture(scope="module")
def written(weights: dict[str, Tensor], tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any], Path]:
    """Return a function that gives the folder of a quantized checkpoint, which is written once."""
    folders = dict[str, Path]()

    def made(packer: Any) -> Path:
        if (name := repr(packer)) not in folders:
            folders[name] = write(
                weights, CONFIG | SHAPE, tmp_path_factory.mktemp("written"), packer
            ).quantized
        return folders[name]

    return made


@pytest.mark.parametrize(
    ("packer", "changes", "problem"),
    [
        (Fp4(), {"weight_scale": None}, "weight_packed exists, but model.layers.1.mlp.up_proj.weight_scale"),
        (Fp4(), {"weight_global_scale": None}, f"but {UP}.weight_global_scale is missing"),
        (Fp4(), {"weight_packed": None}, "is not part of this model"),
        (Fp4(), {"weight_zero_point": torch.zeros(160, 4)}, f"{UP}.weight_zero_point is not part"),
        (
            Fp4(),
            {"weight_packed": torch.zeros(160, 64).byte()},
            "is [160, 64], the config requires [160, 32]",
        ),
        (Fp4(), {"weight_packed": torch.zeros(160, 32).int()}, "weight_packed holds I32; only U8"),
        (Fp4(), {"weight_scale": torch.zeros(160, 4)}, "weight_scale holds F32; only F8_E4M3"),
        (Fp4(), {"weight_scale": bytes_of(160, 2, value=1)}, "is [160, 2], the config requires [160, 4]"),
        (Fp4(), {"weight_scale": bytes_of(160, 4, value=0x7F)}, "negative or not finite"),
        (Fp4(), {"weight_scale": bytes_of(160, 4, value=0x80)}, "negative or not finite"),
        (Fp4(32), {"weight_scale": bytes_of(160, 2, value=255, kind=torch.uint8)}, "negative or not finite"),
        (Fp4(32), {"weight_scale": bytes_of(160, 2, value=1)}, "holds F8_E4M3; only U8, F8_E8M0"),
        *(
            (Fp4(), {"weight_global_scale": torch.tensor([value])}, "must be above zero and finite")
            for value in (0.0, -1.0, torch.inf, torch.nan, 1e-45)
        ),
        (Fp4(), {"weight_global_scale": torch.ones(160)}, "is [160], the config requires [] or [1]"),
        (Fp4(modelopt=True), {"weight_scale_2": torch.tensor(-1.0)}, "weight_scale_2 is -1; it must be"),
        (Fp4(modelopt=True), {"weight_scale_2": None}, f"{UP}.weight exists, but {UP}.weight_scale_2"),
        (
            Fp4(modelopt=True),
            {"pre_quant_scale": torch.ones(64)},
            "pre_quant_scale is not part of this model",
        ),
        (MIXED["floats"], {"weight": torch.zeros(160, 64).char()}, f"{UP}.weight holds I8; only F8_E4M3"),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    written: Callable[[Any], Path],
    tmp_path: Path,
    packer: Any,
    changes: Mapping[str, Tensor | None],
    problem: str,
) -> None:
    folder = copytree(written(packer), tmp_path / "quantized")
    file = folder / "model.safetensors"
    tensors = load_file(file) | {f"{UP}.{name}": each for name, each in changes.items()}
    save_file({name: each for name, each in tensors.items() if each is not None}, file)
    message = refusal(folder)
    assert problem in message and str(file) in message


def test_inputs_must_be_whole_groups(tmp_path: Path) -> None:
    shape = SHAPE | {"intermediate_size": 168}
    weights = checkpoint(tmp_path, **shape)

    def packer(weight: Tensor, number: int) -> Packed:
        return Fp4()(weight[:, : weight.shape[1] // 16 * 16], number)

    packer.config = Fp4().config  # type: ignore[attr-defined]
    made = write(weights, CONFIG | shape, tmp_path, packer)
    assert "has 168 inputs, not a multiple of 16" in refusal(made.quantized)


def test_experts_are_used_as_stored(tmp_path: Path) -> None:
    shape = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "moe_intermediate_size": 32,
        "num_experts": 4,
        "num_experts_per_tok": 2,
    }
    reference("Qwen3Moe", shape, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    tensors = load_file(tmp_path / "model.safetensors")
    made = write(tensors, config, tmp_path, MIXED["floats"], but=("self_attn.k_proj",))
    assert any(".experts.3.down_proj" in name for name in made.packed)
    model, plain = loaded(made.quantized), loaded(made.plain)
    torch.testing.assert_close(logits(model), logits(plain), rtol=0, atol=1e-4)
    made = write(tensors, config, tmp_path / "alone", Fp4())
    model = loaded(made.quantized)
    assert sum(isinstance(each, Fp4Table) for each in model.modules()) > 2 * 2 * 4
    torch.testing.assert_close(logits(model), logits(loaded(made.plain)), rtol=0, atol=1e-4)


@pytest.mark.parametrize("group", [16, 32])
def test_ranks_take_whole_groups(group: int) -> None:
    weight = stored(Packing("fp4", group), Fp4(group)(torch.randn(12, 128), 0).tensors, 128)
    part = weight.cut(slice(3, 9), slice(64, 128))
    assert torch.equal(part.dequantized(), weight.dequantized()[3:9, 64:])
    with pytest.raises(BadCheckpoint, match=f"not whole groups of {group}"):
        weight.cut(slice(0, 12), slice(0, 72))
