"""Our engine and the continuous batching of transformers: the workloads of `gpu`, on one GPU, in one process.

The transformers model has our engine's weights, in bfloat16, and uses flash-attn if it is installed, else
sdpa. Both alternate within one run, so that changes in the speed of the GPU affect both.

Of larger shapes (mixtures of experts, windows) a GPU holds one model at a time: ours is measured first, then
transformers with random weights of its own, both by `generate` and by its continuous batching, if that
supports the shape. Only steps are measured.
"""

import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch

from benchmarks.gpu.gpu import LONG, SHORT, free_engines, oracle, started, step_times
from benchmarks.gpu.workload import drawn, finish
from minichat.bench.harness import Bench
from minichat.bench.shapes import COMMON, EVERY, SHAPES

DEVICE = "cuda"
FEW = (4, 36)  # tokens of replies of larger shapes: a step of transformers may take 100 ms


def run(
    bench: Bench,
    *,
    shape: tuple[str, ...] = ("0.6B",),
    rows: tuple[int, ...] = (1, 8, 32, 128, 256),
    only: tuple[str, ...] = ("decode", "mixed"),
) -> None:
    if not torch.cuda.is_available():
        raise SystemExit(f"gpu_peers needs an NVIDIA GPU, and torch {torch.__version__} sees none")
    for name in shape:
        if name in SHAPES:
            alternating(bench, name, rows, only)
        else:
            ours_alone(bench, name, rows)
            transformers_alone(bench, name, rows)
            gc.collect()
            torch.cuda.empty_cache()


def alternating(bench: Bench, name: str, rows: Sequence[int], only: Sequence[str]) -> None:
    with started(bench, name) as engine, oracle(name, engine) as model:
        manager = transformers(model.bfloat16())
        with manager as theirs:
            sides = {"ours": lambda *given, e=engine: finish(e, *given), "transformers": theirs}
            for part in only:
                PARTS[part](bench, name, sides, rows)


def ours_alone(bench: Bench, name: str, rows: Sequence[int]) -> None:
    with started(bench, name) as engine:
        for count in rows:
            bench.note(f"{name}, D, B={count}, ours", step_times(engine, count), "ms")


def transformers_alone(bench: Bench, name: str, rows: Sequence[int]) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = {key: value for key, value in (COMMON | EVERY[name]).items() if key != "architectures"}
    free_engines()  # a model of this size and our cache do not fit together
    with torch.device(DEVICE):
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(**settings), dtype=torch.bfloat16
        ).eval()
    steps(bench, f"{name}, D, %s, transformers, generate", partial(generated, model), rows)
    try:
        with transformers(model) as theirs:
            steps(bench, f"{name}, D, %s, transformers, continuous batching", theirs, rows)
    except (Exception, SystemExit) as error:
        reason = repr(error).partition("\n")[0]
        bench.progress.console.print(f"{name}: transformers' continuous batching does not run: {reason}")


def steps(bench: Bench, label: str, generate: Callable[..., object], rows: Sequence[int]) -> None:
    for count in rows:
        taken = []
        for turn in range(1 + bench.repeats):  # the first one warms up
            short, long = (seconds(generate, prompts(count), [each] * count) for each in FEW)
            if turn:
                taken.append((long - short) / (FEW[1] - FEW[0]) * 1e3)
        bench.note(label % f"B={count}", taken, "ms")


def generated(model: Any, prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> None:
    how: dict[str, Any] = {"do_sample": True, "temperature": 0.6, "top_k": 0, "pad_token_id": 0}
    with torch.inference_mode():
        given = torch.tensor(prompts, device=DEVICE)
        out = model.generate(given, max_new_tokens=counts[0], min_new_tokens=counts[0], **how)
    assert out.shape[1] == given.shape[1] + counts[0]


def decode(bench: Bench, name: str, sides: dict[str, Any], rows: Sequence[int]) -> None:
    """Milliseconds of a step by number of rows, as in `gpu`."""
    for count in rows:
        steps: dict[str, list[float]] = {side: [] for side in sides}
        for turn in range(4):  # the first round compiles kernels and captures graphs
            for side, generate in sides.items():
                short, long = (seconds(generate, prompts(count), [each] * count) for each in (SHORT, LONG))
                if turn:
                    steps[side].append((long - short) / (LONG - SHORT) * 1e3)
        for side, taken in steps.items():
            bench.note(f"{name}, D, B={count}, {side}", taken, "ms")


def mixed(bench: Bench, name: str, sides: dict[str, Any], rows: Sequence[int]) -> None:
    given = drawn()
    for turn in range(2):
        for side, generate in sides.items():
            spent = seconds(generate, *given)
            if turn:
                bench.note(f"{name}, N, {side}", sum(given[1]) / spent, "tok/s")


def prompts(rows: int) -> list[list[int]]:
    return [[random.randrange(10000) for _ in range(512)] for _ in range(rows)]


def seconds(generate: Any, *given: Any) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    generate(*given)
    torch.cuda.synchronize()
    return time.perf_counter() - began


@contextmanager
def transformers(model: Any) -> Iterator[Any]:
    """A function that generates replies of given lengths in transformers' continuous batching."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    for way in (*["flash_attention_2"] * bool(find_spec("flash_attn")), "sdpa", "eager"):
        with suppress(ValueError):  # the model does not support it
            model.set_attn_implementation(way)
            break
    how = GenerationConfig(do_sample=True, temperature=0.6, top_k=0, eos_token_id=-1, max_new_tokens=1024)
    batching = ContinuousBatchingConfig(
        allow_block_sharing=False
    )  # otherwise a repeated prompt would be free
    with model.continuous_batching_context_manager(how, continuous_batching_config=batching) as manager:

        def generate(prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> None:
            for prompt, count in zip(prompts, counts, strict=True):
                manager.add_request(list(prompt), max_new_tokens=count)
            lengths: list[int] = []
            while len(lengths) < len(prompts):
                one = manager.get_result(timeout=60)
                if one is None or one.error:
                    raise SystemExit(f"transformers: {'no reply' if one is None else one.error}")
                if one.is_finished():
                    lengths.append(len(one.generated_tokens))
            assert sorted(lengths) == sorted(counts)

        yield generate


PARTS = {each.__name__: each for each in (decode, mixed)}
