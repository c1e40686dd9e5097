"""A step without memory: smaller steps follow, one request fails if it must, and the engine continues."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine import assembly
from engine.api.config import EngineConfig
from engine.api.errors import BadInput, NoMemory
from engine.api.params import SamplingParams
from engine.api.request import Finish
from engine.execution.memory import enough_memory, with_memory
from engine.execution.runner import ModelRunner
from engine.scheduling import settings as scheduler_settings
from engine.serving.engine import Engine
from engine.start import start
from tests.cases import soak
from tests.models.tiny import write_config
from tests.runner.replies.test_company import Workload, assert_nothing_changes, engine_for, workloads
from tests.runner.small import GREEDY, Watched, alone, ask, drain, engine_on, turn

PROMPTS = [[1, *range(40, 40 + 9 * each)] for each in range(2, 6)]


def limit_memory(engine: Engine, fails: Callable[[Tensor], bool]) -> Engine:
    """Make steps run out of memory if `fails` returns true for their ids."""
    runner = engine.runner
    assert isinstance(runner, ModelRunner)

    def sometimes_fail(ids: Tensor) -> None:
        if fails(ids):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    runner.model = Watched(runner.model, sometimes_fail)  # type: ignore[assignment]
    return engine


@pytest.mark.parametrize("depth", [*soak(0), 1])
@pytest.mark.parametrize(
    ("most", "chunked"), [(1, True), (3, False), (46, True), *soak((1, False), (3, True), (46, False))]
)
def test_steps_shrink_until_they_fit(llama: Path, most: int, chunked: bool, depth: int) -> None:
    engine = engine_on(llama, depth=depth, chunked_prefill=chunked)
    limit_memory(engine, lambda ids: len(ids) > most)
    outputs = [ask(engine, prompt)[1] for prompt in PROMPTS]
    drain(engine)
    for prompt, each in zip(PROMPTS, outputs, strict=True):
        if not chunked and len(prompt) > most:
            assert (each.finish, each.tokens) == (Finish.FAILED, [])
            assert f"no memory for a step of {len(prompt)} tokens: CUDA out of memory" in each.error
        else:
            assert each.reply == alone(llama, prompt).reply


@pytest.mark.soak
@settings(max_examples=12)
@given(work=workloads, most=st.integers(1, 12))
def test_replies_do_not_change(llama: Path, work: Workload, most: int) -> None:
    jobs = tuple(replace(job, params=job.params.changed(speculate="")) for job in work.jobs)
    engine = limit_memory(engine_for(llama, work), lambda ids: len(ids) > most)
    assert_nothing_changes(engine, llama, replace(work, jobs=jobs))


@pytest.mark.parametrize("depth", [*soak(0), 1])
def test_only_the_request_that_never_fits_fails(llama: Path, depth: int) -> None:
    engine = limit_memory(engine_on(llama, depth=depth), lambda ids: bool((ids == 200).any()))
    outputs = [ask(engine, prompt)[1] for prompt in (PROMPTS[0], [*PROMPTS[1], 200, 7], PROMPTS[2])]
    drain(engine)
    assert outputs[1].finish is Finish.FAILED
    assert "no memory for a step of 1 tokens" in outputs[1].error
    for at in (0, 2):
        assert outputs[at].reply == alone(llama, PROMPTS[at]).reply


def test_a_retry_uses_the_memory_reserve(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries, given_back = itertools.count(), []
    engine = limit_memory(engine_on(llama), lambda ids: next(tries) == 3)
    monkeypatch.setattr(engine.runner, "give_back_reserve", lambda: given_back.append(True))
    output = ask(engine, PROMPTS[0])[1]
    drain(engine)
    assert output.reply == alone(llama, PROMPTS[0]).reply
    assert len(given_back) == 1
    assert engine.scheduler.preemptions == 0


def test_steps_grow_again_after_enough_successes(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_settings, "SMALL_STEPS", 4)
    engine, least = engine_on(llama), []
    full = engine.scheduler.rules.step_tokens
    tight = [True]
    limit_memory(engine, lambda ids: tight[0] and len(ids) > 2)
    for prompt in PROMPTS:
        ask(engine, prompt)
    while engine.busy:
        turn(engine)
        least.append(engine.scheduler.rules.step_tokens)
        tight[0] = len(least) < 20
    assert min(least) <= 2
    assert least[-1] == full


OF_TORCH = (
    "CUDA out of memory. Tried to allocate 2.95 GiB. GPU 0 has a total capacity of 139.80 GiB of which "
    "87.56 MiB is free. Including non-PyTorch memory, this process has 139.19 GiB memory in use. If reserved "
    "but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
)


def test_a_model_that_does_not_fit_says_what_to_do(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*given: Any, **named: Any) -> None:
        raise torch.OutOfMemoryError(OF_TORCH)

    monkeypatch.setattr(assembly, "load_share", load)
    with pytest.raises(BadInput) as caught:
        engine_on(llama)
    assert str(caught.value) == (
        "the GPU has no room for 2.95 GiB more, with 87.56 MiB free; another program may use it (see "
        "nvidia-smi); a smaller model or --quantization needs less"
    )


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        torch.AcceleratorError(
            "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in https://docs.nvidia.com/cuda"
        ),
    ],
    ids=["triton", "cublas", "cuda"],
)
def test_a_gpu_that_others_have_filled(
    llama: Path, monkeypatch: pytest.MonkeyPatch, error: RuntimeError
) -> None:
    def fail(*given: Any, **named: Any) -> None:
        raise error

    tries = list[int]()
    with pytest.raises(NoMemory, match=r"^the GPU is full$"):
        with_memory(fail, lambda: tries.append(1), 2)
    assert len(tries) == 2

    monkeypatch.setattr(assembly, "load_share", fail)
    with pytest.raises(BadInput, match=r"^the GPU is full; another program may use it"):
        engine_on(llama)


def test_other_errors_are_not_mistaken_for_a_lack_of_memory(llama: Path) -> None:
    def fail() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        with_memory(fail, lambda: pytest.fail("it is not a lack of memory"), 2)
    with pytest.raises(RuntimeError, match="illegal memory access"), enough_memory():
        fail()


@pytest.mark.cuda
def test_a_real_gpu_without_room(tmp_path: Path) -> None:
    """With a little memory beyond the engine's own, the prompt is chunked and all replies complete."""
    write_config(
        tmp_path, hidden_size=256, intermediate_size=4096, max_position_embeddings=8192, num_hidden_layers=2
    )
    results = []
    for spare in (None, 48 * 2**20):
        engine = start(
            EngineConfig(model=str(tmp_path), device="cuda", dummy_weights=True, blocks=1200, seed=0)
        )
        outputs = [ask(engine, [1, 2, 3], replace(GREEDY, max_tokens=40))[1]]
        for _ in range(10):
            turn(engine)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(0).total_memory
        if spare is not None:
            torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + spare) / total)
        try:
            outputs += [ask(engine, [*range(3, 90)] * 46, SamplingParams(temperature=0.0, max_tokens=9))[1]]
            drain(engine)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        assert all(each.finish is Finish.LENGTH for each in outputs), [each.error for each in outputs]
        assert (engine.scheduler.rules.step_tokens < 4000) is (spare is not None)
        results.append([each.tokens for each in outputs])
    assert results[0] == results[1]
