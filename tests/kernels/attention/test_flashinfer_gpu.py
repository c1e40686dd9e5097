"""The backend over flashinfer on a GPU, against the torch backend in float32 on the same numbers."""

import random
from pathlib import Path

import pytest
import torch

from engine.api.cache_spec import LayerSpec
from engine.api.config import EngineConfig
from engine.api.params import SamplingParams
from engine.attention.torch_backend import TorchAttention
from engine.start import start
from tests.kernels.cases import make_long_case
from tests.models.tiny import write_config
from tests.runner.small import ask, drain

pytestmark = pytest.mark.cuda
TOLERANCE = {torch.bfloat16: 6e-3, torch.float16: 1e-3}


@pytest.fixture(autouse=True)
def require_flashinfer() -> None:
    pytest.importorskip("flashinfer", reason="flashinfer is not installed")


def compare(spec: LayerSpec, dtype: torch.dtype, block_size: int, seed: str) -> None:
    """Run single tokens, short chunks, both, and long chunks on one backend, with a new plan each step."""
    from engine.attention.flashinfer_backend import FlashInfer

    draw = random.Random(seed)
    singles = [(1, draw.randint(1, draw.choice((200, 9000)))) for _ in range(7)]
    chunks = [(count, count + draw.randint(0, 2000)) for count in (2, draw.randint(10, 100))]
    many = 132 * 128 // spec.heads  # tokens, enough to select the kernels for long chunks
    long = [(count, count + draw.randint(0, 900)) for count in (many // 3, many)]
    kernels, oracle = FlashInfer(), TorchAttention()
    for each, rows in enumerate((singles, chunks, [*singles, *chunks], [*singles[:2], *long])):
        case = make_long_case(
            spec, rows, block_size=block_size, dtype=dtype, device=torch.device("cuda"), seed=each
        )
        other = case.copy()
        with torch.inference_mode():
            got = kernels.attend(case.q, case.k, case.v, case.layer, kernels.prepare(case.batch))
            prepared = oracle.prepare(other.batch)
            expected = oracle.attend(other.q.float(), other.k, other.v, other.layer, prepared)
        assert torch.equal(case.layer.keys.nan_to_num(7.0), other.layer.keys.nan_to_num(7.0))
        worst = (got.float() - expected).flatten(1).norm(dim=1) / expected.flatten(1).norm(dim=1)
        assert worst.max() < TOLERANCE[dtype], f"relative error {worst.max():.1e} at token {worst.argmax()}"


@pytest.mark.parametrize(
    ("dtype", "dim"), [(torch.bfloat16, 64), (torch.bfloat16, 128), (torch.float16, 128)], ids=str
)
@pytest.mark.parametrize("group", [1, 2, 5, 8])
def test_any_rows_are_right(dtype: torch.dtype, dim: int, group: int) -> None:
    spec = LayerSpec(heads=4 * group, kv_heads=4, key_dim=dim, value_dim=dim, scale=0.7 * dim**-0.5)
    compare(spec, dtype, {1: 16, 2: 16, 5: 32, 8: 256}[group], f"{dtype} {dim} {group}")


@pytest.mark.parametrize(("window", "softcap"), [(1, None), (100, None), (None, 5.0)])
def test_windows_and_caps(window: int | None, softcap: float | None) -> None:
    spec = LayerSpec(
        heads=8, kv_heads=4, key_dim=128, value_dim=128, scale=128**-0.5, window=window, softcap=softcap
    )
    compare(spec, torch.bfloat16, 16, f"{window} {softcap}")


def test_an_engine_runs_on_it(tmp_path: Path) -> None:
    write_config(tmp_path, head_dim=64, num_attention_heads=4, num_key_value_heads=2, dtype="bfloat16")
    engine = start(
        EngineConfig(
            model=str(tmp_path), device="cuda", dummy_weights=True, attention="flashinfer", blocks=200, seed=0
        )
    )
    params = SamplingParams(temperature=0.8, max_tokens=40, ignore_eos=True)
    outputs = [ask(engine, [1, *range(3, 10 + 20 * each)], params)[1] for each in range(4)]
    drain(engine)
    assert [len(each.tokens) for each in outputs] == [40] * 4
