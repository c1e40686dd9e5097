"""The kernels of whole steps, compiled without a GPU: every launch, with the settings of a real one.

Finds type mismatches, missing instructions, too much shared memory. Nothing runs: tensors hold no data.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.api.cache_spec import CacheSpec, KvSchemeName, LayerSpec, StateSpec
from engine.api.config import DecoderConfig, ExpertsSpec, RopeSpec
from engine.kv.store import KVLayer, KVStore
from engine.models.adapters.bank import AdapterBank
from engine.models.decoder import Decoder
from engine.models.source import finalize
from engine.quant.registry import named, of_head
from engine.sampling.rows import COLUMNS
from tests.attention.cases import make_batch
from tests.cases import soak
from tests.kernels import ptx
from tests.kernels.adapted import empty_adapter

pytest.importorskip("triton", reason="no Triton here")

ROOM = {80: 163, 90: 227, 100: 227, 120: 99}  # KB of shared memory that a program may take, by capability
META = torch.device("meta")
GIVEN = LayerSpec(heads=16, kv_heads=8, key_dim=128, value_dim=128, scale=128**-0.5)
SMALL = DecoderConfig(
    family="qwen3", dtype="bfloat16", hidden=1024, layers=(GIVEN,), vocab=151936, max_context=40960, mlp=3072,
    norm_eps=1e-6, rope=RopeSpec(theta=1e6), tied=True, qk_norm=True,
)  # fmt: skip
NARROW = replace(
    SMALL, hidden=64, mlp=128, layers=(LayerSpec(heads=4, kv_heads=2, key_dim=16, value_dim=16, scale=0.25),)
)
LARGE = replace(SMALL, hidden=4096, layers=(replace(GIVEN, heads=32),), mlp=14336, qk_norm=False, tied=False)
# In int4, one row has a kernel for gate and up and one for down, and none for the other two.
BETWEEN = replace(LARGE, hidden=2048, layers=LARGE.layers * 2)
ROUTED = replace(
    SMALL, family="qwen3_moe", hidden=2048,
    experts=ExpertsSpec(count=128, chosen=8, width=768, normalized=True),
)  # fmt: skip
CLAMPED = replace(
    ROUTED, family="gpt_oss", hidden=2880, experts=ExpertsSpec(count=32, chosen=4, width=2880), mlp_bias=True,
    settings={"alpha": 1.702, "limit": 7.0},
)  # fmt: skip
STATE = CacheSpec.of_state(StateSpec(heads=32, key_heads=16, key_dim=128, value_dim=128, taps=4))
HYBRID = replace(
    SMALL, family="qwen3_5_text", hidden=2560, mlp=9216, rope=RopeSpec(theta=1e7, share=0.25),
    layers=(STATE, STATE, LayerSpec(heads=16, kv_heads=4, key_dim=256, value_dim=256, scale=1 / 16)),
)  # fmt: skip
INTERLEAVED = replace(
    HYBRID, family="qwen3_next", experts=ExpertsSpec(count=128, chosen=8, width=512, shared=512)
)
SPACE = CacheSpec.of_state(StateSpec(heads=128, key_heads=8, key_dim=128, value_dim=64, taps=4))
SPACES = replace(
    LARGE, family="nemotron_h", mlp=21504, layers=(SPACE, CacheSpec.of_nothing(), *LARGE.layers), dense=(1,),
    activation="relu2", unrotated=(2,),
    settings={"conv_bias": True, "state_bias": False, "steps": (0.001, math.inf)},
)  # fmt: skip
CHUNKED = replace(
    LARGE, family="llama4_text", hidden=5120, mlp=16384, dense=(1,), unrotated=(1,),
    layers=(replace(GIVEN, heads=40, chunk=8192), replace(GIVEN, heads=40)),
    rope=RopeSpec(theta=5e5, interleaved=True),
    experts=ExpertsSpec(count=16, chosen=1, width=8192, shared=8192),
    settings={"normed": True, "floor": 8192, "growth": 0.1},
)  # fmt: skip
SLOPED = replace(
    LARGE, family="bloom", tied=True, unrotated=(0,), activation="gelu_tanh", mlp_bias=True, out_bias=True,
    layers=(replace(GIVEN, heads=32, kv_heads=32, slopes=tuple(2.0 ** (-n / 4) for n in range(1, 33))),),
    qkv_bias=True, settings={"by_head": True, "clip": None},
)  # fmt: skip
TAPS = CacheSpec.of_state(StateSpec(heads=1, key_heads=1, key_dim=0, value_dim=2048, taps=3))
CONVOLVED = replace(
    SMALL, family="lfm2", hidden=2048, layers=(TAPS, replace(GIVEN, heads=32, key_dim=64, value_dim=64)),
    settings={"conv_bias": False},
)  # fmt: skip
BESIDE = replace(
    SMALL, family="falcon_h1", hidden=2048, qk_norm=False,
    layers=(
        replace(GIVEN, kv_heads=2, state=StateSpec(heads=48, key_heads=1, key_dim=256, value_dim=64, taps=4)),
    ),
    settings={
        **SPACES.settings, "norm": "none", "state_out_bias": False, "mlp_factors": (0.9, 1.2),
        "factors": {"ssm_in": 0.8, "ssm_out": 1.3, "attention_in": 1.2, "attention_out": 0.6},
        "state_factors": (0.9, 1.1, 0.7, 1.3, 0.8),
    },
)  # fmt: skip

# The arguments that kernels with an early start may read while the kernel before them, or the one before
# that, still runs: weights, and the staging buffers of the step. Other arguments must wait.
BEFORE = {
    "_gemv": {"weight", "weight_scale", "norm_weight", "bias"}, "_norm_router": {"weight", "norm_weight"},
    "_int4_gemv": {"words", "grid", "eye", "norm_weight"}, "_gemv_in_turns": {"words", "norm_weight"},
    "_norm": {"weight", "term_weight", "adapters", "table"}, "_gemm_with_terms": {"places", "table"},
    "_routed_down": {"weight", "shared", "logits", "choice_bias"},  # see one_row.py for the logits
    "_rope_and_cache": {"weight", "rope", "positions", "places", "adapters", "table"},
    "_qkv_rope": {"rope", "positions", "places"}, "_by_head": {"weight", "w_head"}, "_merge": {"merges"},
    "_absorb": {"weight", "w_head", "norm_weight", "rope", "positions"}, "_pick": {"columns", "slots"},
    **{key: {"places", "table"} for key in ("_skinny_gemm_shrink", "_shrink", "_expand", "_expand_swiglu")},
    **{key: {"columns"} for key in ("_scan", "_bound", "_spread", "_gather", "_find", "_weigh")},
    **{key: {"items", "tables"} for key in ("_attend", "_attend_latents")},
    "_linear_residual_norm": {"norm_weight"},
}  # fmt: skip


class FakeDriver:
    """What Triton asks of a driver before its first launch."""

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self._capability, 32)

    def get_current_device(self) -> int:
        return self._capability  # Triton's key for compiled kernels

    def set_current_device(self, device: int) -> None:
        assert device == self.get_current_device()

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def active(fake: FakeDriver) -> Iterator[None]:
    """Let Triton use this driver."""
    from triton.runtime.driver import driver

    driver.set_active(fake)
    try:
        yield
    finally:
        driver.set_active(None)  # Triton finds its own again


@pytest.fixture
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """The shared memory of each launched kernel's programs, on a Hopper or the requested GPU."""
    from triton.runtime.jit import JITFunction

    from engine.attention import graph_work, triton_backend
    from engine.kernels.triton import precompile as rehearsal  # noqa: F401  it replaces `run` itself, for good
    from engine.kernels.triton.attention.tiles import GpuLimits
    from engine.models import fused

    found: dict[str, int] = {}
    capability = getattr(request, "param", 90)
    room = ROOM[capability] * 2**10
    run: Callable[..., Any] = JITFunction.run

    def compile_only(kernel: Any, *given: Any, grid: Any, warmup: bool, **named: Any) -> None:
        made = run(kernel, *given, grid=grid, warmup=True, **named)
        name = kernel.fn.__name__
        found[name] = max(found.get(name, 0), made.metadata.shared)
        if made.metadata.launch_pdl:
            assert read_early(made) <= BEFORE.get(name, set()), name
        if name == "_rope_and_cache" and not named["TERM_PARTS"]:
            assert ptx.loads_at_once(made.asm["ptx"])

    monkeypatch.setattr(JITFunction, "run", compile_only)
    for module in (graph_work, triton_backend, fused):
        monkeypatch.setattr(module, "gpu", lambda device: GpuLimits(room, overlaps=capability >= 90))
    with active(FakeDriver(capability)):
        yield found
    assert found
    assert max(found.values()) <= room, found


def read_early(made: Any) -> set[str]:
    """Return the arguments that a kernel reads or writes before it waits for the kernel before it."""
    names = [
        name
        for name, kind in made.src.signature.items()
        if kind != "constexpr"
        for _ in range(5 if kind.startswith("tensordesc") else 1)  # with two sizes and two strides
    ]
    return {names[at] for at in ptx.reached_before(made.asm["ptx"], "griddepcontrol.wait")}


def stage_of(
    config: DecoderConfig, scheme: str, kv: KvSchemeName, block_size: int = 16, rank: int = 0
) -> Any:
    """`rank`: of an adapter of all products; 0: there is none."""
    from engine.attention.triton_backend import TritonAttention
    from engine.execution.cuda.stage import GpuStage

    model = Decoder(config, torch.bfloat16).eval()
    for layer in model.layers:
        if scheme != "none" or STATE in config.layers:
            finalize(layer, named(scheme))
    if not config.tied:
        model.head = of_head(named(scheme)).make(model.head.weight, None)  # type: ignore[arg-type]
    room: dict[str, Any] = {"blocks": 64, "block_size": block_size, "host_blocks": 0, "dtype": torch.bfloat16}
    store = KVStore(config.layers, device=META, scheme=kv, **room)
    adapters = AdapterBank(model, META)
    if rank:
        adapters.put(1, empty_adapter(config, rank))
    return GpuStage(model, store, TritonAttention(), adapters)


@pytest.mark.parametrize(
    ("config", "rows", "scheme", "kv"),
    [
        (SMALL, 8, "none", "none"), (SMALL, 1, "int8", "int8"),
        *soak(
            (ROUTED, 4, "none", "none"), (NARROW, 2, "none", "int8"),
            (SMALL, 128, "none", "none"), (SMALL, 8, "none", "int4"),
            (ROUTED, 1, "none", "none"), (ROUTED, 1, "int8", "none"), (ROUTED, 128, "int4", "none"),
            (ROUTED, 256, "fp8", "none"), (ROUTED, 8, "int4", "none"), (CLAMPED, 1, "none", "none"),
            (CLAMPED, 64, "int8", "none"), (CLAMPED, 2, "int4-32", "none"),
            (BETWEEN, 1, "int4", "fp8"),
            (SMALL, 40, "none", "none"), (LARGE, 1, "none", "none"), (SMALL, 4, "int4", "fp8"),
            (SMALL, 1, "fp8", "none"), (BETWEEN, 1, "int4", "none"), (SMALL, 128, "none", "fp8"),
            (SMALL, 1, "none", "none"), (LARGE, 32, "none", "none"),
            (SMALL, 4, "int8", "none"), (SMALL, 1, "int4", "none"), (SMALL, 64, "int4-128", "none"),
            (SMALL, 1, "none", "int4"),
            (LARGE, 1, "int8", "none"), (LARGE, 1, "int4", "none"), (LARGE, 40, "none", "int8"),
            (LARGE, 8, "fp8", "none"), (LARGE, 17, "fp8", "none"), (LARGE, 40, "fp8", "none"),
            (LARGE, 128, "fp8", "none"),
        ),
    ],
)  # fmt: skip
def test_steps_that_decode(
    compiled: dict[str, int], config: DecoderConfig, rows: int, scheme: str, kv: KvSchemeName
) -> None:
    decode(config, rows, scheme, kv)


@pytest.mark.parametrize(
    ("compiled", "config", "rows", "scheme"),
    [
        *soak(
            (80, SMALL, 4, "int8"),
            (120, SMALL, 4, "fp8"), (80, SMALL, 4, "int4"), (80, LARGE, 1, "int4"),
            (100, SMALL, 128, "none"), (100, LARGE, 128, "fp8"),
        ),
    ],
    indirect=["compiled"],
)  # fmt: skip
def test_on_other_gpus(compiled: dict[str, int], config: DecoderConfig, rows: int, scheme: str) -> None:
    decode(config, rows, scheme, "none")


def decode(config: DecoderConfig, rows: int, scheme: str, kv: KvSchemeName, rank: int = 0) -> None:
    with META, torch.inference_mode():
        launch(stage_of(config, scheme, kv, rank=rank), rows, filtered=rows == 8, cut=rows < 32)


@pytest.mark.parametrize(
    ("config", "tokens", "kv"),
    [
        (SMALL, 128, "none"),
        *soak(
            (LARGE, 192, "none"),
            (SMALL, 48, "fp8"),
            (SMALL, 512, "int4"),
            (HYBRID, 80, "none"),
            (SPACES, 64, "none"),
        ),
    ],
)
def test_pieces_of_prompts_in_graphs(
    compiled: dict[str, int], config: DecoderConfig, tokens: int, kv: KvSchemeName
) -> None:
    pieces(config, tokens, kv)


def pieces(config: DecoderConfig, tokens: int, kv: KvSchemeName) -> None:
    with META, torch.inference_mode():
        launch(stage_of(config, "none", kv), tokens, filtered=False, cut=True, pieces=True)


def launch(stage: Any, rows: int, *, filtered: bool, cut: bool, pieces: bool = False) -> None:
    """A step that decodes, or has pieces of prompts, from empty buffers."""
    from engine.execution.cuda.sampling_fields import SamplingFlags

    with META, torch.inference_mode():
        work = stage.work(rows, pieces=pieces)
        names = ("ids", "positions", "places", "slots", "contexts", "tokens")
        fields = {name: torch.empty(rows, dtype=torch.int64) for name in names}
        if stage.adapters is not None and stage.adapters.nbytes:
            fields["adapters"] = torch.empty(rows, dtype=torch.int64)
        fields["columns"] = torch.empty(len(COLUMNS), rows, dtype=torch.float64)
        tables, last_ids = torch.empty(rows, 64, dtype=torch.int32), torch.empty(rows + 1, dtype=torch.int64)
        where = torch.empty(work.numbers, dtype=torch.int32), tables, fields["slots"], fields["contexts"]
        prepared = work.metadata(*where, cut=cut, decodes=True)
        if pieces:
            stage.hidden(fields, last_ids, prepared, None)
            return
        logits = stage.logits(fields, last_ids, prepared)
        stage.sample(logits, fields, last_ids, SamplingFlags(filtered, False, False, False), None)


@pytest.mark.parametrize("kv", ["none", *soak("int4", "int8", "fp8")])
def test_steps_with_prompts(compiled: dict[str, int], kv: KvSchemeName) -> None:
    prompts(kv)


def prompts(
    kv: KvSchemeName, config: DecoderConfig = SMALL, block_size: int = 16, longest: int = 300
) -> None:
    rows = [(1, 400), (1, 30), (4, 90), (longest, longest)]  # tokens, and their context
    tables = [list(range(each * 8, each * 8 + 25)) for each in range(len(rows) - 1)]
    tables.append(list(range(-(-longest // block_size))))
    batch = make_batch(rows, tables, block_size)
    with META, torch.inference_mode():
        stage = stage_of(config, "none", kv, block_size)
        on_device = {name: getattr(batch, name).to(META) for name in ("ids", "positions", "places", "tables")}
        stage.head(stage.forward(replace(batch, **on_device)))


@pytest.mark.parametrize(
    ("compiled", "tokens", "context"),
    [
        (90, 3000, 3000), (80, 300, 300),
        *soak(
            (120, 300, 4000),
            (80, 3000, 3000), (90, 300, 4000), (90, 300, 300), (100, 3000, 3000), (120, 300, 300),
            (80, 300, 4000), (100, 300, 4000), (100, 300, 300), (120, 3000, 3000),
        ),
    ],
    indirect=["compiled"],
)  # fmt: skip
def test_prompts_on_every_gpu(compiled: dict[str, int], tokens: int, context: int) -> None:
    """Gathered where that pays and the GPU supports it, else by tiles for long and short contexts."""
    from triton.runtime.driver import driver

    from engine.attention.triton_backend import TritonAttention

    backend = TritonAttention()
    batch = make_batch([(tokens, context)], [list(range(context // 16 + 1))], 16)
    with META, torch.inference_mode():
        cells = torch.empty(context // 16 + 1, 16, GIVEN.kv_heads, GIVEN.key_dim, dtype=torch.bfloat16)
        q = torch.empty(tokens, GIVEN.heads, GIVEN.key_dim, dtype=torch.bfloat16)
        prepared = backend.prepare(replace(batch, tables=batch.tables.to(META)))
        backend.mix(q, KVLayer(GIVEN, cells, cells), prepared)
    capability = driver.active.get_current_target().arch
    assert ("_gather" in compiled) == (tokens == 3000 and capability >= 90)


@pytest.mark.parametrize(
    ("config", "rows", "scheme"),
    [(HYBRID, 8, "none"), *soak((HYBRID, 1, "none"), (HYBRID, 256, "int8"), (INTERLEAVED, 4, "none"))],
)
def test_linear_attention_that_decodes(
    compiled: dict[str, int], config: DecoderConfig, rows: int, scheme: str
) -> None:
    decode(config, rows, scheme, "none")
    assert {"_prepare", "_advance", "_router_logits", "_sigmoid_gate"} <= compiled.keys()
    assert "_norm_gate" not in compiled


def test_linear_attention_with_prompts(compiled: dict[str, int]) -> None:
    prompts("none", HYBRID)
    assert {"_prepare", "_advance", "_norm_gate"} <= compiled.keys()


@pytest.mark.parametrize(("rows", "scheme"), [(8, "none"), *soak((1, "none"), (256, "int8"))])
def test_state_spaces_that_decode(compiled: dict[str, int], rows: int, scheme: str) -> None:
    decode(SPACES, rows, scheme, "none")
    assert {"_convolve", "_advance_space", "_gated_group_norm", "_relu2"} <= compiled.keys()


@pytest.mark.parametrize(
    ("compiled", "key_dim"), [(90, 128), *soak((90, 256), (80, 256), (120, 128))], indirect=["compiled"]
)
def test_state_spaces_with_prompts(compiled: dict[str, int], key_dim: int) -> None:
    """In blocks of a real size, which chunks also depend on."""
    assert SPACE.state is not None
    state = CacheSpec.of_state(replace(SPACE.state, key_dim=key_dim))
    prompts("none", replace(SPACES, layers=(state, *SPACES.layers[1:])), block_size=256)
    assert {"_convolve", "_advance_chunks", "_gated_group_norm", "_relu2"} <= compiled.keys()


@pytest.mark.parametrize(
    ("config", "kv"),
    soak(
        (CHUNKED, "none"), (CHUNKED, "int8"), (CHUNKED, "int4"),
        (SLOPED, "none"), (SLOPED, "fp8"), (SLOPED, "int4"),
        (CONVOLVED, "none"), (BESIDE, "none"), (BESIDE, "int8"),
    ),
)  # fmt: skip
def test_chunks_slopes_convolutions_and_layers_with_both(
    compiled: dict[str, int], config: DecoderConfig, kv: KvSchemeName
) -> None:
    """Decodes, prompts, and pieces of prompts in graphs."""
    decode(config, 8, "none", kv)
    prompts(kv, config)
    pieces(config, 64, kv)
    assert "_attend" in compiled
    assert ("_convolve" in compiled) == any(each.state is not None for each in config.layers)
