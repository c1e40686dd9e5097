"""The fused chain launches the same kernels in the same order, with the same arguments, as recorded.

The records beside this file were written before the layers of a decoder were made of parts. Six are stored in
full, to see where one differs, and all by their hash. After an intended change, write them again:
`python -m tests.kernels.steps.test_launches`.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from engine.api.cache_spec import KvSchemeName, LayerSpec
from engine.api.config import DecoderConfig, ExpertsSpec, RopeSpec
from engine.kv.store import KVStore
from engine.models.decoder import Decoder
from engine.models.source import finalize
from engine.quant.registry import named, of_head
from tests.attention.cases import make_batch
from tests.cases import soak
from tests.kernels.launches import Record, recorded

pytest.importorskip("triton", reason="no Triton here")

META = torch.device("meta")
HEADS = LayerSpec(heads=16, kv_heads=8, key_dim=128, value_dim=128, scale=128**-0.5)
QWEN = DecoderConfig(
    family="qwen3", dtype="bfloat16", hidden=1024, layers=(HEADS,) * 3, vocab=5000, max_context=2000,
    mlp=3072, norm_eps=1e-6, rope=RopeSpec(theta=1e6), tied=True, qk_norm=True,
)  # fmt: skip
LLAMA = replace(
    QWEN, family="llama", hidden=4096, layers=(replace(HEADS, heads=32),) * 3, mlp=14336, qk_norm=False,
    norm_eps=1e-5, tied=False,
)  # fmt: skip
MIXED = (replace(HEADS, window=64), HEADS, HEADS)
MODELS = {
    "qwen": QWEN,
    "llama": LLAMA,
    "biases": replace(QWEN, qkv_bias=True, qk_norm=False),
    "all-biases": replace(QWEN, qkv_bias=True, out_bias=True, mlp_bias=True),
    "unrotated": replace(QWEN, layers=MIXED, unrotated=(1,), tied=False),
    "experts": replace(
        QWEN, family="qwen3_moe", experts=ExpertsSpec(count=32, chosen=4, width=256, normalized=True)
    ),
    "narrow": replace(QWEN, hidden=500, mlp=700, layers=(replace(HEADS, key_dim=80, value_dim=80),) * 2),
}
ROWS = (1, 8, 40, 128, 300)
SCHEMES = ("none", "int8", "int4", "fp8")
GPUS = {90: 227, 80: 163, 120: 99}  # KB of shared memory that a program may take, by capability
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True)
class Case:
    model: str
    rows: int
    scheme: str = "none"
    layers: str = "all"  # the layers that are quantized; first: only the first one
    kv: KvSchemeName = "none"
    dtype: str = "bf16"
    gpu: int = 90
    prompts: bool = False

    def __str__(self) -> str:
        parts = (self.scheme, self.layers, f"kv-{self.kv}", self.dtype, f"sm{self.gpu}")
        return f"{self.model}-{self.rows}{'-prompts' if self.prompts else ''}:{':'.join(parts)}"


def cases() -> Iterator[Case]:
    for model in MODELS:
        yield from (Case(model, rows) for rows in ROWS)
        yield Case(model, 40, prompts=True)
    for rows in (1, 8):
        yield from (
            Case("qwen", rows, scheme, layers) for scheme in SCHEMES[1:] for layers in ("all", "first")
        )
        yield Case("qwen", rows, kv="int8")
        yield from (Case("qwen", rows, dtype=dtype) for dtype in ("fp16", "fp32"))
        yield from (Case("qwen", rows, scheme, gpu=gpu) for scheme in SCHEMES[:3] for gpu in (80, 120))
        yield from (Case(model, rows, "int4") for model in ("llama", "biases"))


SHOWN = [Case(model, rows) for model in ("qwen", "llama") for rows in (1, 8, 64)]
HERE = Path(__file__).parent / "recorded"


def record_of(case: Case, *, waits: bool = False) -> Record:
    """Record a step from its tokens to its logits. `waits`: of a prompt, for the blocks of its layers."""
    from engine.attention import graph_work, triton_backend
    from engine.attention.triton_backend import TritonAttention
    from engine.execution.cuda.stage import GpuStage
    from engine.kernels.triton.attention.tiles import GpuLimits
    from engine.models import fused

    config, dtype = MODELS[case.model], TYPES[case.dtype]
    facts = GpuLimits(GPUS[case.gpu] * 2**10, overlaps=case.gpu >= 90)
    with ExitStack() as patched, META, torch.inference_mode():
        for module in (graph_work, triton_backend, fused):
            patched.enter_context(patch.object(module, "gpu", lambda device: facts))
        model = Decoder(config, dtype).eval()
        for layer in list(model.layers)[: 1 if case.layers == "first" else None]:
            finalize(layer, named(case.scheme))
        if not config.tied:
            model.head = head(model.head, case.scheme)
        room: dict[str, Any] = {"blocks": 64, "block_size": 16, "host_blocks": 0, "dtype": dtype}
        stage = GpuStage(
            model, KVStore(config.layers, device=META, scheme=case.kv, **room), TritonAttention()
        )
        return prompts(stage, case.rows, waits=waits) if case.prompts else decodes(stage, case.rows)


def head(plain: nn.Module, scheme: str) -> nn.Module:
    weight = plain.weight
    assert isinstance(weight, Tensor)
    return of_head(named(scheme)).make(weight, None)


def decodes(stage: Any, rows: int) -> Record:
    work = stage.work(rows)
    names = ("ids", "positions", "places", "slots", "contexts")
    fields = {name: torch.empty(rows, dtype=torch.int64) for name in names}
    tables, last_ids = torch.empty(rows, 64, dtype=torch.int32), torch.empty(rows + 1, dtype=torch.int64)
    where = torch.empty(work.numbers, dtype=torch.int32), tables, fields["slots"], fields["contexts"]
    prepared = work.metadata(*where, cut=rows < 32, decodes=True)
    with recorded() as record:
        stage.logits(fields, last_ids, prepared)
    return record


def prompts(stage: Any, rows: int, *, waits: bool) -> Record:
    batch = make_batch([(1, 40), (rows, 90 + rows)], [list(range(4, 60)), list(range(60))], 16)
    there = {name: getattr(batch, name).to(META) for name in ("ids", "positions", "places", "tables")}
    with recorded() as record:
        wait = (lambda layer: record.lines.append(f"wait for layer {layer}")) if waits else None
        stage.head(stage.forward(replace(batch, **there), wait=wait))
    return record


def digest(record: Record) -> str:
    return hashlib.sha256("\n".join(record.lines).encode()).hexdigest()[:16]


@pytest.mark.parametrize("case", SHOWN, ids=str)
def test_a_step_launches_what_is_recorded(case: Case) -> None:
    expected = (HERE / f"{case.model}-{case.rows}.txt").read_text(encoding="utf-8").splitlines()
    assert record_of(case).lines == expected


@pytest.mark.parametrize("every", [2, *soak(1)])
@pytest.mark.parametrize("model", MODELS)
def test_every_other_kind_of_step_launches_what_is_recorded(model: str, every: int) -> None:
    """Weight and cache schemes, types, numbers of rows and GPUs, and also prompts."""
    expected = json.loads((HERE / "digests.json").read_text(encoding="utf-8"))[model]
    kinds = [case for case in cases() if case.model == model]
    assert [*map(str, kinds)] == [*expected]
    found = {str(case): digest(record_of(case)) for case in kinds[::every]}
    assert found == {name: expected[name] for name in found}


def test_layers_wait_for_their_blocks_before_they_attend() -> None:
    case = Case("qwen", 40, prompts=True)
    lines, waits = record_of(case, waits=True).lines, "wait for layer "
    assert [line for line in lines if not line.startswith(waits)] == record_of(case).lines
    parts = "\n".join(lines).split(waits)
    layers = len(MODELS["qwen"].layers)
    assert [part[0] for part in parts[1:]] == [*map(str, range(layers))]
    assert ["\nattention " in part for part in parts] == [False] + [True] * layers


def test_records_differ_when_launches_differ() -> None:
    """Early starts, tilings and the data flow all show."""
    early, late = record_of(SHOWN[0]).lines, record_of(replace(SHOWN[0], gpu=80)).lines
    assert any("launch_pdl=True" in line for line in early) and "launch_pdl" not in "".join(late)
    assert digest(record_of(SHOWN[1])) != digest(record_of(SHOWN[2]))
    assert early != record_of(replace(SHOWN[0], scheme="int8")).lines


def write() -> None:
    HERE.mkdir(exist_ok=True)
    for case in SHOWN:
        lines = record_of(case).lines
        (HERE / f"{case.model}-{case.rows}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    found: dict[str, dict[str, str]] = {}
    for case in cases():
        found.setdefault(case.model, {})[str(case)] = digest(record_of(case))
    (HERE / "digests.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
