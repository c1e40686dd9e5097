"""The kernels of a rank's steps, compiled without a GPU, as in test_compiles.py."""

from typing import TYPE_CHECKING, Any

import pytest
import torch

from engine.api.config import DecoderConfig
from engine.kv.store import KVStore
from engine.models.decoder import Decoder
from engine.models.source import finalize
from engine.quant.registry import named
from tests.cases import soak
from tests.kernels.steps import test_compiles
from tests.kernels.steps.test_compiles import LARGE, META, SMALL, compiled, decode, pieces, prompts

if TYPE_CHECKING:
    from tests.kernels.steps.recording_driver import RecordingDriver

pytest.importorskip("triton", reason="no Triton here")

__all__ = ["compiled"]  # a fixture
MAY_READ = {"_sum_norm": {"weight"}}  # before they wait for the kernel before them


def a_collective() -> Any:
    """The collective of rank 1 of two, without memory."""
    from engine.distributed.peers import PeerCollective
    from engine.kernels.triton.collective.exchange import PROGRAMS, Inbox

    made = object.__new__(PeerCollective)
    numbers = [torch.empty(count, dtype=torch.int64) for count in (2, 2, 5)]
    counts = torch.empty(2 * PROGRAMS, dtype=torch.int32)
    made.rank, made.ranks = 1, 2
    made.attach(Inbox(1, 2, numbers[0], numbers[1], counts, numbers[2]))
    return made


@pytest.fixture(autouse=True)
def of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    def stage_of(config: DecoderConfig, scheme: str, kv: Any, block_size: int = 16, rank: int = 0) -> Any:
        assert rank == 0, "models on several ranks have no adapters"
        from engine.attention.triton_backend import TritonAttention
        from engine.execution.cuda.stage import GpuStage

        model = Decoder(config, torch.bfloat16, collective=a_collective()).eval()
        for layer in model.layers if scheme != "none" else ():
            finalize(layer, named(scheme))
        room: dict[str, Any] = {
            "blocks": 64,
            "block_size": block_size,
            "host_blocks": 0,
            "dtype": torch.bfloat16,
        }
        store = KVStore(model.caches, device=META, scheme=kv, **room)
        return GpuStage(model, store, TritonAttention())

    monkeypatch.setattr(test_compiles, "stage_of", stage_of)
    monkeypatch.setattr(test_compiles, "BEFORE", test_compiles.BEFORE | MAY_READ)


@pytest.mark.parametrize(
    ("config", "rows", "scheme"),
    [
        *soak(
            (LARGE, 1, "none"), (SMALL, 40, "none"), (SMALL, 1, "none"), (SMALL, 8, "none"),
            (LARGE, 8, "none"), (LARGE, 32, "none"), (LARGE, 128, "none"), (LARGE, 8, "fp8"),
            (LARGE, 128, "fp8"), (LARGE, 1, "fp8"), (LARGE, 1, "int8"), (LARGE, 32, "int8"),
            (LARGE, 1, "int4"), (LARGE, 8, "int4"), (LARGE, 256, "int4"),
        )
    ],
)  # fmt: skip
def test_steps_that_decode(compiled: dict[str, int], config: DecoderConfig, rows: int, scheme: str) -> None:
    decode(config, rows, scheme, "none")
    assert {"_embed_share", "_sum_ranks", "_sum_norm"} <= compiled.keys()
    assert {"_gather_ranks", "_exchange_bulk"} & compiled.keys()  # of the logits


@pytest.mark.soak
def test_pieces_of_prompts_in_graphs(compiled: dict[str, int]) -> None:
    pieces(LARGE, 512, "none")
    assert {"_exchange_bulk", "_norm"} <= compiled.keys()


@pytest.mark.soak
def test_steps_with_prompts_and_with_many_rows(compiled: dict[str, int]) -> None:
    prompts("none")
    with META, torch.inference_mode():
        decode(LARGE, 512, "none", "none")
    assert {"_exchange_bulk", "_norm"} <= compiled.keys()


@pytest.mark.parametrize("scheme", ["none", *soak("int8", "fp8", "int4")])
def test_no_kernel_of_a_step_compiles_beside_its_exchanges(gpu: "RecordingDriver", scheme: str) -> None:
    """The runner compiles the kernels of a step, then launches them (tests/distributed/test_ranks.py)."""
    from tests.kernels.steps.recording_driver import precompile

    def step() -> None:
        decode(SMALL, 8, scheme, "none")

    precompile(step)
    compiled = set(gpu.missing)
    assert {"_embed_share", "_sum_ranks", "_sum_norm"} <= compiled and not gpu.launched
    gpu.missing.clear()
    step()
    assert not gpu.missing and set(gpu.launched) == compiled
