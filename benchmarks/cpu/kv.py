"""KV cache schemes on a CPU, with the built-in model: capacity and speed."""

from collections.abc import Callable

import torch

from engine.api.cache_spec import KV_SCHEMES, LayerSpec
from engine.api.config import EngineConfig
from engine.api.params import SamplingParams
from engine.kv.store import KVStore
from engine.serving.engine import Engine
from engine.start import start
from minichat.bench.harness import Bench

WINDOW, CONTEXT, TOKENS = 256, 1024, 32


def capacity(bench: Bench) -> None:
    """The number of tokens that fit in the memory of one token of an uncompressed cache."""
    for dim in (32, 64, 128):
        spec = LayerSpec(heads=8, kv_heads=8, key_dim=dim, value_dim=dim, scale=1.0)
        plain = KVStore.block_bytes([spec], 16, torch.bfloat16)
        for scheme in KV_SCHEMES[1:]:
            held = plain / KVStore.block_bytes([spec], 16, torch.bfloat16, scheme)
            bench.note(f"{scheme} / bfloat16, heads of {dim}", held, "x")


def speed(bench: Bench) -> None:
    """Decoding after a long context, alone and four at once."""
    blocks = 5 * (CONTEXT + TOKENS) // 16
    forms = {scheme: {"kv_scheme": scheme} for scheme in KV_SCHEMES} | {
        f"window {WINDOW}": {"kv_window": WINDOW}
    }
    engines = {
        name: start(EngineConfig(model="pocket", device="cpu", threads=1, blocks=blocks, seed=0, **form))
        for name, form in forms.items()
    }
    for rows in (1, 4):
        calls = {
            f"{name}, {rows} behind {CONTEXT} tokens": decodes(engine, rows)
            for name, engine in engines.items()
        }
        bench.compare(calls, unit="tok/s")


def decodes(engine: Engine, rows: int) -> Callable[[], float]:
    """After the first call the prompt is in the prefix cache, so only decoding is timed."""
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(10, 3000, (rows, CONTEXT), generator=generator).tolist()

    def call() -> float:
        for prompt in prompts:
            engine.submit(prompt, params, lambda delta: None)
        while engine.busy:
            engine.step()
        return float(rows * TOKENS)

    return call


PARTS = {"capacity": capacity, "speed": speed}


def run(bench: Bench, *, only: tuple[str, ...] = tuple(PARTS)) -> None:
    for name in only:
        PARTS[name](bench)
