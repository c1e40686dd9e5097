"""The backend over flash-attn on a GPU, against the torch backend in float32 on the same numbers."""

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
TOLERANCE = 6e-3  # of bfloat16


@pytest.fixture(autouse=True)
def require_flash_attn() -> None:
    pytest.importorskip("flash_attn", reason="flash-attn is not installed")


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("group", [1, 2, 4, 8])
def test_any_rows_are_right(dim: int, group: int) -> None:
    from engine.attention.flash_backend import FlashAttention

    draw = random.Random(f"{dim} {group}")
    spec = LayerSpec(heads=4 * group, kv_heads=4, key_dim=dim, value_dim=dim, scale=dim**-0.5)
    singles = [(1, draw.randint(1, draw.choice((200, 9000)))) for _ in range(7)]
    chunks = [(count, count + draw.randint(0, 2000)) for count in (2, draw.randint(10, 400))]
    for seed, rows in enumerate((singles, chunks, [*singles, *chunks])):
        case = make_long_case(
            spec, rows, block_size=256, dtype=torch.bfloat16, device=torch.device("cuda"), seed=seed
        )
        kernels, oracle, other = FlashAttention(), TorchAttention(), case.copy()
        with torch.inference_mode():
            got = kernels.attend(case.q, case.k, case.v, case.layer, kernels.prepare(case.batch))
            prepared = oracle.prepare(other.batch)
            expected = oracle.attend(other.q.float(), other.k, other.v, other.layer, prepared)
        assert torch.equal(case.layer.keys.nan_to_num(7.0), other.layer.keys.nan_to_num(7.0))
        worst = (got.float() - expected).flatten(1).norm(dim=1) / expected.flatten(1).norm(dim=1)
        assert worst.max() < TOLERANCE, f"relative error {worst.max():.1e} at token {worst.argmax()}"


def test_an_engine_runs_on_it(tmp_path: Path) -> None:
    write_config(tmp_path, head_dim=64, num_attention_heads=4, num_key_value_heads=2, dtype="bfloat16")
    engine = start(
        EngineConfig(
            model=str(tmp_path), device="cuda", dummy_weights=True, attention="flash-attn", block_size=256,
            blocks=20, seed=0,
        )
    )  # fmt: skip
    params = SamplingParams(temperature=0.8, max_tokens=40, ignore_eos=True)
    outputs = [ask(engine, [1, *range(3, 10 + 20 * each)], params)[1] for each in range(4)]
    drain(engine)
    assert [len(each.tokens) for each in outputs] == [40] * 4
