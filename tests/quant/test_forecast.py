"""The forecast size of the weights in another scheme is what they take once they are in it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from engine.api.config import ModelPlace
from engine.execution.weights import Weights, nbytes, weight_bytes
from engine.kernels.cpu import int8_digits
from engine.kernels.cpu.compiled import product as compiled
from engine.models.decoder import Decoder
from engine.models.registry import load_model
from engine.quant import fp4, fp8_linear, int4, int8
from engine.quant.registry import named
from tests.models.families import EXPERTS, reference
from tests.quant.changing import parts_changed

# None of these is a multiple of what kernels pad to.
UNEVEN: dict[str, Any] = {"vocab_size": 301, "hidden_size": 72, "intermediate_size": 300, "head_dim": 24}
FAMILIES = [
    ("Llama", UNEVEN),
    ("Llama", UNEVEN | {"tie_word_embeddings": True}),
    ("Qwen2Moe", EXPERTS | {"qkv_bias": False}),
]


def no(*_: Any) -> str:
    return "this CPU has no instructions for it"


def check(family: str, changed: dict[str, Any], folder: Path, device: str, dtype: str) -> None:
    reference(family, changed, folder)
    model = load_model(ModelPlace("it", folder), device=device, dtype=dtype)
    assert isinstance(model, Decoder)
    present = "none"
    for view in Weights(model, present, share=1.0).schemes("none", lambda more: None):
        if view.why_not or view.name == present:
            continue
        forecast = nbytes(model, model.source.scheme(view.name))
        list(parts_changed(model, present, view.name))
        assert forecast == weight_bytes(model), view.name
        present = view.name


@pytest.mark.parametrize(("family", "changed"), FAMILIES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("kernels", ["here", "compiled", "tables"])
def test_on_a_cpu(
    family: str,
    changed: dict[str, Any],
    dtype: str,
    kernels: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if kernels == "compiled":  # the weights are laid out anywhere
        monkeypatch.setattr(compiled, "why_not", lambda bits, kind: None if kind is torch.bfloat16 else no())
        monkeypatch.setattr(int8_digits, "why_not", lambda kind: compiled.why_not(8, kind))
        monkeypatch.setattr(compiled, "_kernel", no)
    if kernels == "tables":
        monkeypatch.setattr(compiled, "why_not", no)
        monkeypatch.setattr(int8_digits, "why_not", no)
    check(family, changed, tmp_path, "cpu", dtype)


@pytest.mark.parametrize("shape", [(301, 72), (512, 256), (33, 100)])
def test_products_of_a_gpu(shape: tuple[int, int]) -> None:
    """They are made here on a CPU, where they do not run."""
    pytest.importorskip("triton")
    from engine.quant.gpu_products import Fp4Product, Fp8Product, Int4Product, Int8Product

    gpu, dtype, weight = torch.device("cuda"), torch.bfloat16, torch.randn(shape).bfloat16()

    def expect(product: nn.Module, forecast: int) -> None:
        assert sum(each.nbytes for each in product.buffers()) == forecast, type(product)

    expect(Int8Product(*int8.quantized(weight), None), named("int8").nbytes(*shape, dtype, gpu))
    expect(Fp8Product(*fp8_linear.quantized(weight), None), named("fp8").nbytes(*shape, dtype, gpu))
    for group in int4.GROUPS:
        made = Int4Product(int4.grouped(weight, group), None, shape[1], dtype)
        expect(made, named(f"int4-{group}").nbytes(*shape, dtype, gpu))
    numbers = torch.zeros(shape[0], 192, dtype=torch.uint8)
    scale = torch.zeros(shape[0], 12, dtype=torch.uint8)
    expect(Fp4Product(numbers, scale, torch.ones(shape[0]), None, dtype), fp4.nbytes(shape[0], 192, 16, gpu))


@pytest.mark.cuda
@pytest.mark.parametrize(("family", "changed"), FAMILIES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_on_a_gpu(family: str, changed: dict[str, Any], dtype: str, tmp_path: Path) -> None:
    check(family, changed, tmp_path, "cuda", dtype)
