"""The engine on a GPU: decode steps at several batch sizes, a mixed workload, and the parts of a step.

Shapes of Qwen3-0.6B and Llama-3.1-8B (and the others of minichat/bench/shapes.py, without
`check`) with random weights, since speed hardly depends on them. `D, B=n`: n prompts of 512 tokens; a
step is (seconds of 272 tokens - seconds of 16) / 256, beside the time in which this device reads its
bytes. `N`: 256 requests with prompts and replies of 100 to 1,024 tokens each, all
submitted at the start. Temperature 0.6, the end token ignored. `--quantization none fp8 --kv none fp8`
measures each scheme of the weights with each of the cache.
Before anything is timed, greedy replies are checked against transformers in float32 on the same weights.
"""

import gc
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.gpu.gpu_attention import copy_speeds
from benchmarks.gpu.limits import bytes_of_run, bytes_of_step
from benchmarks.gpu.profiled import profiled
from benchmarks.gpu.workload import Heard, capture_all, drawn, finish, heard, speeds_of_mixed
from engine.api.cache_spec import KvSchemeName
from engine.api.config import EngineConfig
from engine.api.params import SamplingParams
from engine.execution.cuda.recording import Recording
from engine.execution.runner import ModelRunner
from engine.models.decoder import Decoder
from engine.models.loader import decoder_slots
from engine.serving.engine import Engine
from engine.start import start
from minichat.bench.harness import Bench
from minichat.bench.shapes import COMMON, EVERY, FOREIGN, HYBRIDS, SHAPES, WINDOWED

CONTEXT = 4096
BLOCKS = 256 * 2048 // 16  # for the whole mixed workload; the check needs the other memory
PROMPT, SHORT, LONG = 512, 16, 272
GAP = 0.1  # allowed between the largest logit and that of the chosen token, in transformers' float32 logits
LIKELIEST, ERROR = 8, 1.2  # tokens whose log-probabilities may be so many times as far off as transformers'
PROFILED = 24  # steps
PROMPT_STEPS = 16  # of N, of which all have pieces of prompts
LEFT = (224, 192, 160, 128, 96, 64, 32, 16)  # rows at which steps of N are profiled
STEADY = 200  # steps timed without a profiler; includes the launch of the first
DRAWS: dict[str, dict[str, Any]] = {
    "plain": {},
    "top-k": {"top_k": 50},
    "top-p": {"top_p": 0.9},
    "top-k and top-p": {"top_k": 50, "top_p": 0.9},
    "penalties": {"frequency_penalty": 0.5, "repetition_penalty": 1.1},
    "a bias": {"logit_bias": {5: 2.0}},
    "20 log-probabilities": {"logprobs": 20},
}


def run(
    bench: Bench,
    *,
    shape: tuple[str, ...] = ("0.6B", "8B"),
    rows: tuple[int, ...] = (1, 8, 32, 128, 256),
    quantization: tuple[str, ...] = ("none",),
    kv: tuple[KvSchemeName, ...] = ("none",),
    only: tuple[str, ...] = ("check", "decode", "anatomy", "mixed"),
) -> None:
    if not torch.cuda.is_available():
        raise SystemExit(f"gpu needs an NVIDIA GPU, and torch {torch.__version__} sees none")
    for name in shape:
        if "cold" in only:  # first, because two engines may not fit
            cold(bench, name)
        for weights, cache in product(quantization, kv):
            # Replies from compressed numbers are not checked: their rounding is not an error.
            skipped = {"cold"} if weights == cache == "none" else {"cold", "check"}
            if selected := [part for part in only if part not in skipped]:
                measured(bench, name, weights, cache, selected, rows)


def measured(
    bench: Bench, name: str, weights: str, cache: KvSchemeName, parts: Sequence[str], rows: Sequence[int]
) -> None:
    """In a function of its own, so that nothing holds this engine while the next one loads."""
    with started(bench, name, quantization=weights, kv_scheme=cache) as engine:
        for part in parts:
            PARTS[part](bench, labeled(name, weights, cache), engine, rows)


def cold(bench: Bench, name: str) -> None:
    """The time from start to the first reply in separate processes, with an empty Triton cache."""
    program = (
        "from tempfile import mkdtemp; from benchmarks.gpu.gpu import opened; "
        f"print(opened({name!r}, mkdtemp())[1])"
    )
    for turn in ("first", "second"):  # the second finds the files of the first in the page cache
        with tempfile.TemporaryDirectory() as cache:
            env = os.environ | {"TRITON_CACHE_DIR": cache}
            command = [sys.executable, "-c", program]
            finished = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
        bench.note(
            f"{name}, from start to the first reply, compiling, {turn} process", float(finished.stdout), "s"
        )


@contextmanager
def started(
    bench: Bench, name: str, quantization: str = "none", kv_scheme: KvSchemeName = "none"
) -> Iterator[Engine]:
    with tempfile.TemporaryDirectory() as folder:
        engine, seconds = opened(name, folder, quantization=quantization, kv_scheme=kv_scheme)
        label = labeled(name, quantization, kv_scheme)
        bench.note(f"{label}, from start to the first reply", seconds, "s")
        yield engine


def labeled(name: str, quantization: str, kv: KvSchemeName) -> str:
    forms = {"weights": quantization, "KV": kv}
    return ", ".join((name, *(f"{what} {form}" for what, form in forms.items() if form != "none")))


def opened(name: str, folder: str, **config: Any) -> tuple[Engine, float]:
    """An engine of this shape, and the seconds from start to its first reply."""
    larger = HYBRIDS | WINDOWED | FOREIGN
    blocks = None if name in larger else BLOCKS  # None: as many as fit
    usual = {"max_context": CONTEXT, "prefix_cache": False, "blocks": blocks, "host_blocks": 0, "seed": 0}
    (Path(folder) / "config.json").write_text(json.dumps(COMMON | EVERY[name]))
    free_engines()
    began = time.perf_counter()
    engine = start(EngineConfig(model=folder, dummy_weights=True, **{**usual, **config}))
    finish(engine, [[1, 2, 3]], [2])
    seconds = time.perf_counter() - began
    gc.collect()
    gc.freeze()  # like a server's engine: a full collection takes 0.1 s
    return engine, seconds


def free_engines() -> None:
    """Free the GPU's memory of closed engines: their objects refer to each other and are frozen."""
    gc.unfreeze()
    gc.collect()
    torch.cuda.empty_cache()


def decode(bench: Bench, name: str, engine: Engine, rows: Sequence[int]) -> None:
    """A step at so many rows, and the time in which the device copies half of its bytes: reads and writes."""
    runner = engine.runner
    assert isinstance(runner, ModelRunner)
    speed = bench.note("a device copy, read and written", copy_speeds(bench), "TB/s").median * 1e12
    for count in rows:
        bench.note(f"{name}, D, B={count}", step_times(engine, count), "ms")
        limit = bytes_of_step(runner.model, count, PROMPT + LONG // 2) / speed
        bench.note(f"{name}, limit by bytes, B={count}", limit * 1e3, "ms")


def step_times(engine: Engine, rows: int) -> list[float]:
    """Milliseconds of a step, measured three times."""
    draw = random.Random(rows)

    def seconds(count: int) -> float:
        prompts = [[draw.randrange(10000) for _ in range(PROMPT)] for _ in range(rows)]
        torch.cuda.synchronize()
        began = time.perf_counter()
        finish(engine, prompts, [count] * rows)
        return time.perf_counter() - began

    seconds(SHORT)  # compiles kernels and captures graphs
    return [(seconds(LONG) - seconds(SHORT)) / (LONG - SHORT) * 1e3 for _ in range(3)]


def cuda_graphs(bench: Bench, name: str, engine: Engine, rows: Sequence[int]) -> None:
    """A step as a graph replay, and with its kernels launched one by one."""
    for count in rows:
        for on in (True, False):
            engine.runner.graphs = on
            kind = "in a graph" if on else "one by one"
            bench.note(f"{name}, D, B={count}, {kind}", step_times(engine, count), "ms")
    engine.runner.graphs = True


def overlap(bench: Bench, name: str, engine: Engine, rows: Sequence[int]) -> None:
    """Steps launched before or after the previous one is committed, and the time in which the GPU is idle.

    The GPU's own time is that of the graph, replayed without pauses between two halves of the depth 1 steps.
    """
    for count in rows:
        decoding(engine, count, STEADY * 3 + 150)
        first = steps_take(engine, STEADY)
        alone = seconds_of(graph_of_a_step(engine).replay, STEADY)
        ahead = (first + steps_take(engine, STEADY)) / 2
        engine.set_switch("overlap", False)
        behind = steps_take(engine, STEADY)
        engine.set_switch("overlap", True)
        while engine.busy:
            engine.step()
        bench.note(f"{name}, B={count}, a step, depth 0", behind * 1e3, "ms")
        bench.note(f"{name}, B={count}, a step, depth 1", ahead * 1e3, "ms")
        bench.note(f"{name}, B={count}, its graph alone", alone * 1e3, "ms")
        bench.note(f"{name}, B={count}, GPU idle, depth 1", 100 * (1 - alone / ahead), "%")


def graph_of_a_step(engine: Engine) -> torch.cuda.CUDAGraph:
    replayed, run = [], Recording.run

    def noted(recording: Recording) -> tuple[torch.Tensor, ...]:
        replayed.append(recording._graph)
        return run(recording)

    with patch.object(Recording, "run", noted):
        engine.step()
    assert replayed[-1] is not None
    return replayed[-1]


def draws(bench: Bench, name: str, engine: Engine, rows: Sequence[int]) -> None:
    """The cost of each sampling method, used by all rows."""
    for count in rows:
        for how, changes in DRAWS.items():
            decoding(engine, count, STEADY + 150, **changes)
            taken = steps_take(engine, STEADY)
            while engine.busy:
                engine.step()
            bench.note(f"{name}, B={count}, a step, {how}", taken * 1e3, "ms")


def decoding(engine: Engine, rows: int, tokens: int, **changes: Any) -> None:
    """Submit `rows` requests with prompts of 512 tokens; return when each has generated 100."""
    draw = random.Random(rows)
    params = SamplingParams(temperature=0.6, max_tokens=tokens, ignore_eos=True, **changes)
    for _ in range(rows):
        engine.submit([draw.randrange(10000) for _ in range(512)], params, Heard())
    while engine.scheduler.waiting or any(each.generated < 100 for each in engine.scheduler.running):
        engine.step()


def steps_take(engine: Engine, calls: int) -> float:
    """Seconds of one step. Rows that wait for their tokens leave calls without one."""
    before = engine.scheduler.step
    return seconds_of(engine.step, calls) * calls / (engine.scheduler.step - before)


def seconds_of(call: Callable[[], object], times: int) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(times):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / times


def mixed(bench: Bench, name: str, engine: Engine, rows: Sequence[int] = ()) -> None:
    """The mixed workload, and the tokens per second if its decodes took as long as a copy of their bytes."""
    runner = engine.runner
    assert isinstance(runner, ModelRunner)
    bench.note(f"{name}, N", speeds_of_mixed(engine, bench.repeats), "tok/s")
    speed = bench.note("a device copy, read and written", copy_speeds(bench), "TB/s").median * 1e12
    prompts, counts = drawn()
    read = bytes_of_run(runner.model, [len(each) for each in prompts], counts)
    bench.note(f"{name}, limit by bytes, N", sum(counts) / read * speed, "tok/s")


def anatomy(bench: Bench, name: str, engine: Engine, rows: Sequence[int]) -> None:
    """The idle time of the GPU in steady decode, and the time of each kernel."""
    for count in rows:
        decoding(engine, count, PROFILED + 150)
        profiled(bench, f"{name}, B={count}", engine.step, PROFILED)
        while engine.busy:
            engine.step()


def mixed_anatomy(bench: Bench, name: str, engine: Engine, rows: Sequence[int]) -> None:
    """The same within N: of the steps with prompts, and of a few steps at each of some numbers of rows."""
    capture_all(engine)
    prompts, counts = drawn()
    finish(engine, prompts, counts)  # compiles kernels
    for prompt, count in zip(prompts, counts, strict=True):
        engine.submit(prompt, SamplingParams(temperature=0.6, max_tokens=count, ignore_eos=True), Heard())
    profiled(bench, f"{name}, N, prompts", engine.step, PROMPT_STEPS)
    for count in LEFT:
        while len(engine.scheduler.running) > count or engine.scheduler.waiting:
            engine.step()
        profiled(bench, f"{name}, N, B={count}", engine.step, PROFILED // 3)
    while engine.busy:
        engine.step()


def check(bench: Bench, name: str, engine: Engine, rows: Sequence[int]) -> None:
    """Check greedy replies, alone and in batches, against transformers in float32: the tokens against its
    likeliest ones, and the log-probabilities of the likeliest.

    Random weights of the larger shape amplify rounding, so both are compared with transformers in bfloat16.
    """
    draw, greedy = random.Random(1), SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    replies: list[tuple[list[int], Heard]] = []
    for count in (1, 3, 8, 20, 40):
        prompts = [[draw.randrange(10000) for _ in range(draw.randint(2, 700))] for _ in range(count)]
        found = heard(engine, prompts, [greedy.changed(logprobs=LIKELIEST)] * count)
        replies += zip(prompts, found, strict=True)
    with oracle(name, engine) as theirs, torch.inference_mode():

        def logits(prompt: list[int], reply: Heard) -> torch.Tensor:
            ids = torch.tensor([[*prompt, *reply.tokens]], device="cuda")
            return theirs(ids).logits[0, len(prompt) - 1 : -1].float()

        exact = [logits(*each) for each in replies]
        for each in theirs.parameters():  # the buffers of the positions remain in float32
            each.data = each.data.bfloat16()
        rounded = [logits(*each) for each in replies]
    ours = [torch.tensor(reply.tokens, device="cuda") for _, reply in replies]
    gap, usual = largest_gap(exact, ours), largest_gap(exact, [each.argmax(1) for each in rounded])
    bench.note(f"{name}, largest gap to transformers' argmax", gap, "logit")
    bench.note(f"{name}, the same of transformers in bfloat16", usual, "logit")
    error, usual_error = errors([reply for _, reply in replies], exact, rounded)
    bench.note(f"{name}, error of log-probabilities", error, "logit")
    bench.note(f"{name}, the same of transformers in bfloat16", usual_error, "logit")
    if not (gap < max(GAP, 1.5 * usual) and error < ERROR * usual_error):
        raise SystemExit(
            f"{name}: wrong tokens: their logits in transformers are up to {gap:.2f} too low, and their "
            f"log-probabilities {error / usual_error:.2f} times as far off as those of bfloat16"
        )


def largest_gap(logits: Sequence[torch.Tensor], tokens: Sequence[torch.Tensor]) -> float:
    """The largest difference between the maximum logit and the logit of one of these tokens."""
    pairs = zip(logits, tokens, strict=True)
    return max(float((each.amax(1) - each.gather(1, of[:, None])[:, 0]).max()) for each, of in pairs)


def errors(
    replies: Sequence[Heard], exact: Sequence[torch.Tensor], rounded: Sequence[torch.Tensor]
) -> tuple[float, float]:
    """The root mean square errors of our log-probabilities of likely tokens, and of the rounded ones."""
    squares: list[tuple[torch.Tensor, torch.Tensor]] = []
    for reply, true, other in zip(replies, exact, rounded, strict=True):
        top = [each.top[:LIKELIEST] for each in reply.logprobs]
        ids, ours = (torch.tensor([[pair[n] for pair in row] for row in top], device="cuda") for n in (0, 1))
        right, near = (each.log_softmax(1).gather(1, ids) for each in (true, other))
        squares.append(((ours - right) ** 2, (near - right) ** 2))
    mine, theirs = (torch.cat([pair[n] for pair in squares]).mean().sqrt().item() for n in (0, 1))
    return mine, theirs


@contextmanager
def oracle(name: str, engine: Engine) -> Iterator[Any]:
    """The transformers model in float32, with the engine's weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = COMMON | SHAPES[name]
    config = AutoConfig.for_model(**{key: value for key, value in settings.items() if key != "architectures"})
    runner = engine.runner
    assert isinstance(runner, ModelRunner) and isinstance(runner.model, Decoder)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    own = model.state_dict()
    for key, slot in decoder_slots(runner.model).items():
        one = (0,) * (slot.view.dim() - len(slot.shape))  # the norms of all heads are equal: take the first
        own[key].copy_(slot.view[one])
    yield model.eval()
    del model, own
    torch.cuda.empty_cache()


PARTS: dict[str, Callable[..., None]] = {
    each.__name__: each
    for each in (check, decode, anatomy, mixed, mixed_anatomy, cuda_graphs, overlap, draws, cold)
}
