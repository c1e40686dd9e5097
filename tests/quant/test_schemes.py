"""Each scheme's product against the oracle: the dequantized weight in a float64 product."""

import importlib.util
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from engine.api.errors import BadInput
from engine.kernels.cpu import int8_digits, many_rows
from engine.kernels.cpu.row_buckets import pad_to_bucket
from engine.quant import bnb, int4
from engine.quant.fp8_linear import ScaledFp8
from engine.quant.fp8_linear import quantized as to_fp8
from engine.quant.grouped import GroupedWeight
from engine.quant.int4 import PackedInt4, grouped
from engine.quant.plain import Cast, Plain
from engine.quant.registry import BUILT_IN, choose, named, names, why_not
from minichat.features.quantization.figures import computed_in
from tests.app.conftest import snapshot

CPU = torch.device("cpu")
OURS = ("int8", "int4", "int4-32", "int4-128")
CLOSE = {torch.float32: 1e-6, torch.bfloat16: 5e-3, torch.float16: 6e-4}  # relative to the norm
SHAPES = ((512, 256), (96, 40), (700, 130))  # of a weight; the last two divide into no group or block
ROWS = (1, 3, 4, 5, 9, 33, 65)  # on both sides of every switch of kernels


def skip_without_bitsandbytes() -> None:
    """Only check for the package: the scheme imports it, in a way that blocks downloads from the hub."""
    if importlib.util.find_spec("bitsandbytes") is None:
        pytest.skip("bitsandbytes is installed along on Linux alone")


def weight_of(shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def rows_of(count: int, width: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(count)).to(dtype)


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize(("name", "dtype"), product(OURS, CLOSE))
@torch.inference_mode()
def test_equals_the_product_with_the_dequantized_weight(name: str, dtype: torch.dtype) -> None:
    for shape in SHAPES:
        bias = rows_of(1, shape[0], dtype)[0]
        for made, added in ((named(name).make(weight_of(shape, dtype), None), None),
                            (named(name).make(weight_of(shape, dtype), bias), bias)):  # fmt: skip
            kept = made.dequantized().double()
            for count in ROWS:
                x = rows_of(count, shape[1], dtype)
                expected = x.double() @ kept.T + (0 if added is None else added.double())
                found = made(x)
                assert found.dtype is dtype and found.shape == expected.shape and found.is_contiguous()
                assert torch.equal(made(x.T.contiguous().T), found), "a strided input gives another result"
                assert relative_error(found, expected) < CLOSE[dtype], (shape, count)


@pytest.mark.parametrize("name", OURS)
@torch.inference_mode()
def test_other_rows_change_only_rounding(name: str) -> None:
    made = named(name).make(weight_of((512, 256), torch.bfloat16), None)
    many = rows_of(33, 256, torch.bfloat16)
    whole = made(many)
    for count in ROWS:
        assert relative_error(made(many[:count]), whole[:count]) < CLOSE[torch.bfloat16]
    few = 4  # up to this count the same kernel runs, so results are bit-identical
    assert all(torch.equal(made(many[:count]), made(many[:few])[:count]) for count in range(1, few))


class RecordedRows(TorchDispatchMode):
    """Records the numbers of rows of all products."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = set[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.matmul.default, torch.ops.aten.linear.default):
            self.rows.add(len(args[0]))
        return func(*args, **kwargs or {})


def test_padded_sizes_are_few_and_near() -> None:
    found = {rows: len(pad_to_bucket(torch.empty(rows, 1, dtype=torch.bfloat16))) for rows in range(1, 2049)}
    assert all(rows <= rung <= rows + rows // 8 for rows, rung in found.items())
    assert len(set(found.values())) == 16 + 7 * 8
    assert len(pad_to_bucket(torch.empty(1001, 1))) == 1001, "float32 needs no padding"


@pytest.mark.parametrize("name", ["int8", "int4", "int4-32", "bnb-nf4"])
@torch.inference_mode()
def test_prompts_of_any_length_use_few_shapes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN keeps half a megabyte for every number of rows it has seen."""
    if name.startswith("bnb"):
        skip_without_bitsandbytes()
    monkeypatch.setattr(many_rows, "multiplies_bfloat16", lambda: True)  # else it multiplies in float32
    monkeypatch.setattr(int8_digits, "why_not", lambda dtype: "off")  # the table is measured here
    monkeypatch.setattr("engine.kernels.cpu.compiled.product.why_not", lambda bits, dtype: "off")
    made = named(name).make(weight_of((64, 128), torch.bfloat16), None)
    x = rows_of(256, 128, torch.bfloat16)
    with RecordedRows() as recorded:
        for count in range(65, 257):
            assert made(x[:count]).shape == (count, 64)
    assert len(recorded.rows) == 16


@pytest.mark.parametrize(("name", "dtype"), product(("bnb-nf4", "bnb-fp4"), CLOSE))
@torch.inference_mode()
def test_bitsandbytes_int4_at_any_width(name: str, dtype: torch.dtype) -> None:
    """Its own products are silently wrong for widths that are no multiple of 64."""
    skip_without_bitsandbytes()
    for shape in SHAPES:
        weight, bias = weight_of(shape, dtype), rows_of(1, shape[0], dtype)[0]
        made = named(name).make(weight, bias)
        assert 0.05 < relative_error(made.dequantized(), weight) < 0.15
        for count in ROWS:
            x = rows_of(count, shape[1], dtype)
            assert (
                relative_error(made(x), x.double() @ made.dequantized().double().T + bias) < CLOSE[dtype]
            ), (
                shape,
                count,
            )
            assert (
                made(x).is_contiguous() and relative_error(made(x.T.contiguous().T), made(x)) < CLOSE[dtype]
            )


@pytest.mark.parametrize("dtype", CLOSE)
@torch.inference_mode()
def test_outliers_are_multiplied_in_full_precision_and_affect_only_their_row(dtype: torch.dtype) -> None:
    skip_without_bitsandbytes()
    weight, bias = weight_of((96, 130), dtype), rows_of(1, 96, dtype)[0]
    made = named("bnb-int8").make(weight, bias)
    assert relative_error(made.dequantized(), weight) < 0.01
    tame, wild = rows_of(5, 130, dtype), rows_of(5, 130, dtype)
    wild[2, 7], wild[3, 100] = 60.0, -30.0
    for x in (tame, wild):
        assert relative_error(made(x), x.double() @ made.dequantized().double().T + bias) < 0.012
    found, quiet = made(wild), made(tame)
    assert torch.equal(found[[0, 1, 4]], quiet[[0, 1, 4]]), "the outlier of another row changed a row"
    assert torch.equal(made(wild[2:3]), found[2:3])


@pytest.mark.parametrize(
    ("name", "most"), [("int8", 0.008), ("int4-32", 0.09), ("int4", 0.1), ("int4-128", 0.11)]
)
def test_the_dequantized_weight_is_near_the_original(name: str, most: float) -> None:
    weight = weight_of((512, 256), torch.float32)
    made = named(name).make(weight, None)
    assert most / 3 < relative_error(made.dequantized(), weight) < most


def test_the_error_of_int8_is_at_most_half_a_step() -> None:
    weight = weight_of((96, 130), torch.float32)
    step = weight.abs().amax(1, keepdim=True) / 127
    kept = named("int8").make(weight, None).dequantized()
    assert ((kept - weight).abs() <= step * 0.501).all()


@pytest.mark.parametrize("name", OURS)
def test_zeros_stay_zeros(name: str) -> None:
    weight = torch.zeros(64, 128)
    weight[0, 0] = 3.0
    made = named(name).make(weight, None)
    assert relative_error(made.dequantized(), weight) < 0.01
    assert torch.equal(made(torch.ones(1, 128))[0, 1:], torch.zeros(63))


@pytest.mark.parametrize("name", [*OURS, "none", "fp32", "bf16", "fp16"])
def test_the_reported_bytes_are_the_bytes_in_memory(name: str) -> None:
    for dtype in (torch.bfloat16, torch.float32):
        made = named(name).make(weight_of((512, 256), dtype), None)
        nbytes = sum(each.nbytes for each in (*made.parameters(), *made.buffers()))
        assert nbytes == named(name).nbytes(512, 256, dtype, CPU)


@pytest.mark.parametrize("shape", [(512, 256), (33, 100)])
def test_the_reported_bytes_of_four_bits_of_bitsandbytes_are_exact(
    shape: tuple[int, int],
) -> None:
    skip_without_bitsandbytes()
    for name, dtype in product(("bnb-nf4", "bnb-fp4"), CLOSE):
        made = named(name).make(weight_of(shape, dtype), None)
        kept = sum(each.nbytes for each in made.buffers())
        assert kept == named(name).nbytes(*shape, dtype, CPU), (name, dtype)


@pytest.mark.parametrize("inputs", [130, 256])
def test_int4_is_rounded_and_packed_in_pieces(inputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is bit-identical, as pieces are split by outputs."""
    weight = weight_of((300, inputs), torch.bfloat16)
    whole = grouped(weight, 32)
    packed = PackedInt4(whole, None, inputs)
    monkeypatch.setattr(int4, "numbers_at_once", lambda device: 100 * 256)
    cut = grouped(weight, 32)
    for name in ("numbers", "scale", "zero"):
        assert torch.equal(getattr(cut, name), getattr(whole, name)), name
    assert torch.equal(PackedInt4(cut, None, inputs).packed, packed.packed)


@torch.inference_mode()
def test_int4_in_an_unknown_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    made = PackedInt4(grouped(weight_of((300, 130), torch.bfloat16), 64), None, 130)
    kept, x = made.dequantized(), rows_of(33, 130, torch.bfloat16)
    monkeypatch.setattr(int4, "outputs_per_tile", lambda: None)
    assert torch.equal(made.dequantized(), kept)
    assert relative_error(made(x), x.double() @ kept.double().T) < CLOSE[torch.bfloat16]
    assert relative_error(made(x.float()), x.double() @ kept.double().T) < CLOSE[torch.float32]


@torch.inference_mode()
def test_int4_columns_in_another_order() -> None:
    weight = weight_of((64, 128), torch.float32)
    order = torch.randperm(128, generator=torch.Generator().manual_seed(0))
    kept = grouped(weight[:, order], 32)
    ordered = GroupedWeight(kept.numbers, kept.scale, kept.zero, order)
    products = [(dtype, int4.held(ordered, None, 128, dtype)) for dtype in CLOSE]
    for dtype, made in (*products, (torch.bfloat16, PackedInt4(ordered, None, 128))):
        for rows in (3, 80):
            x = rows_of(rows, 128, dtype)
            assert relative_error(made(x), x.float() @ weight.T) < 0.1
            assert relative_error(made(x), x.float() @ made.dequantized().T) < CLOSE[dtype]


@torch.inference_mode()
def test_fp8_is_the_scaled_product_of_rounded_rows() -> None:
    """The product itself also runs on a CPU, but it is too slow to offer there."""
    for shape in SHAPES:
        weight, bias = weight_of(shape, torch.bfloat16), rows_of(1, shape[0], torch.bfloat16)[0]
        made = ScaledFp8(*to_fp8(weight), bias)
        assert relative_error(made.dequantized(), weight) < 0.04
        x = rows_of(5, shape[1], torch.bfloat16)
        numbers, scale = to_fp8(x)
        rounded = numbers.double() * scale
        found = made(x)
        assert found.is_contiguous()
        assert relative_error(found, rounded @ made.dequantized().double().T + bias) < CLOSE[torch.bfloat16]
        assert torch.equal(made(x[2:3]), found[2:3]), "a row's rounding depends on other rows"


@pytest.mark.parametrize(
    ("name", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
@torch.inference_mode()
def test_a_dtype_scheme_computes_in_its_dtype(name: str, dtype: torch.dtype) -> None:
    for own in CLOSE:
        weight, x = weight_of((96, 40), own), rows_of(5, 40, own)
        found = named(name).make(weight, None)(x)
        assert found.dtype is own
        assert relative_error(found, x.to(dtype).double() @ weight.to(dtype).double().T) < max(
            CLOSE[own], CLOSE[dtype]
        )


def test_kernels_of_a_scheme_agree_on_rounding() -> None:
    assert [name for name in ("none", *OURS) if named(name).rounds_activations] == []
    assert named("fp8").rounds_activations and named("bnb-int8").rounds_activations


def test_names_and_reasons() -> None:
    assert names()[: len(BUILT_IN)] == list(BUILT_IN)
    assert why_not("int8", CPU, torch.float32) is None
    assert "need an NVIDIA GPU" in (why_not("fp8", CPU, torch.bfloat16) or "")
    with pytest.raises(BadInput, match=r"quantization 'fp8': FP8 products need an NVIDIA GPU"):
        choose("fp8", CPU, torch.bfloat16)
    with pytest.raises(
        BadInput, match=r"quantization 'int5': no scheme has that name; available: none, fp32"
    ):
        choose("int5", CPU, torch.bfloat16)


def test_bitsandbytes_is_imported_without_downloads_or_torch_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "bitsandbytes"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "functional.py").write_text(
        "import importlib.util, sys, torch\n"
        "KERNELS = sys.modules.get('kernels', 'to be fetched')\n"
        "@torch.compile\n@torch.compile(dynamic=False)\n@torch._disable_dynamo\ndef bare(): pass\n"
        "WRAPPED = hasattr(bare, '__wrapped__')\n"
    )
    for name in [each for each in sys.modules if each.split(".")[0] in ("bitsandbytes", "kernels")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    compiler, leaves_alone = torch.compile, torch._disable_dynamo
    try:
        found = bnb.library.__wrapped__()
    finally:
        for name in ("bitsandbytes", "bitsandbytes.functional"):
            sys.modules.pop(name, None)
    assert found.KERNELS is None and not found.WRAPPED
    assert "kernels" not in sys.modules
    assert torch.compile is compiler and torch._disable_dynamo is leaves_alone


def test_the_drawer_says_in_what_type_products_are_computed() -> None:
    for name in BUILT_IN:
        scheme, shown = named(name), computed_in(replace(snapshot(), dtype="xyz", quantization=name))
        if not isinstance(scheme, Plain):
            assert ("inputs in" in shown) is scheme.rounds_activations
        elif scheme.dtype is not None:
            other = torch.float16 if name == "bf16" else torch.bfloat16
            made = scheme.make(weight_of((4, 8), other), None)
            assert isinstance(made, Cast) and shown == f"{str(made.dtype).removeprefix('torch.')}, rest xyz"
