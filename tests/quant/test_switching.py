"""The scheme of the weights changes while chats run: no reply is lost, and changing back is exact."""

import gc
import importlib.util
import random
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from engine.api import events
from engine.api.errors import BadInput, EngineDead
from engine.api.params import SamplingParams
from engine.api.request import Finish
from engine.models import checkpoint
from engine.models.decoder import Decoder
from engine.models.source import PlainSource
from engine.quant import int8
from engine.serving.engine import Engine
from tests.cases import soak
from tests.outputs import Output
from tests.quant.changing import PROMPT, drain_of, engine_on, finish_change, switch
from tests.runner.letters import VOCAB
from tests.runner.small import GREEDY, ask, drain, turn

SCHEMES = ("int8", "int4", "fp32", "int4-128", "none", "bf16")


def recorded_events(engine: Engine) -> list[events.Event]:
    seen: list[events.Event] = []
    engine.bus.subscribe(seen.append)
    return seen


def reply(engine: Engine, prompt: list[int] = PROMPT) -> list[int]:
    _, output = ask(engine, prompt)
    drain(engine)
    return output.tokens


def modules_and_bytes() -> tuple[int, int]:
    """Return the number of modules in this process, and the bytes of its tensors."""
    gc.collect()
    objects = gc.get_objects()
    modules = sum(issubclass(type(each), torch.nn.Module) for each in objects)
    tensors = [each for each in objects if issubclass(type(each), torch.Tensor)]
    packed = sum(each.nbytes for each in tensors if each.is_mkldnn)  # of a library that exposes no storage
    storages = (each.untyped_storage() for each in tensors if not each.is_mkldnn)
    return modules, packed + sum({each.data_ptr(): each.nbytes() for each in storages}.values())


@pytest.mark.parametrize(("depth", "changes"), [(1, 8), *soak((0, 20), (1, 20))])
def test_many_changes_under_eight_chats(folder: Path, depth: int, changes: int) -> None:
    engine = engine_on(folder, depth=depth, prefix_cache=False)
    first = reply(engine)
    for scheme in filter(
        "none".__ne__, SCHEMES
    ):  # tables that the kernels of a scheme keep for each shape are made once
        changed_under_chats(engine, random.Random(depth), 1, (scheme,))
    before, earlier = modules_and_bytes(), recorded_events(engine)
    outputs = changed_under_chats(engine, random.Random(depth), changes)
    assert modules_and_bytes() == before, "memory of other weights was not released"
    assert {each.finish for each in outputs} == {Finish.LENGTH} and len(outputs) >= 8
    assert [len(each.tokens) for each in outputs] == [40] * len(outputs)
    over = [event for event in earlier if isinstance(event, events.Quantized)]
    assert len(over) >= changes and {event.error for event in over} == {""}
    assert engine.scheduler.pool.in_use == 0
    assert reply(engine) == first, "the weights are not the same as before"


def changed_under_chats(
    engine: Engine, rng: random.Random, left: int, schemes: tuple[str, ...] = SCHEMES
) -> list[Output]:
    """Make `left` changes at random moments while eight chats run, and change back to `none` at the end."""
    outputs = []
    params = SamplingParams(temperature=1.0, max_tokens=40, ignore_eos=True)
    while left or engine.busy:
        while left and len(engine.scheduler.requests) < 8:
            prompt = [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 40))]
            outputs.append(ask(engine, prompt, params)[1])
        if left and engine.change is None and rng.random() < 0.3:
            present = engine.snapshot().quantization
            engine.set_quantization(rng.choice([each for each in schemes if each != present]))
            left -= 1
        turn(engine)
    switch(engine, "none")
    return outputs


def test_other_weights_change_replies_and_clear_the_prefix_cache(folder: Path) -> None:
    engine = engine_on(folder)
    plain = reply(engine)
    assert engine.scheduler.pool.cached > 0
    switch(engine, "int4")
    assert engine.scheduler.pool.cached == 0
    coarse = reply(engine)
    assert coarse != plain, "int4 does not change this reply"
    assert reply(engine_on(folder, quantization="int4")) == coarse, "loading and changing give other weights"
    switch(engine, "none")
    assert reply(engine) == plain
    assert engine.scheduler.cached_tokens == 0, "a prefix computed with other weights was used"


def test_a_request_that_runs_through_a_change_publishes_no_more_blocks(folder: Path) -> None:
    engine = engine_on(folder)
    _, output = ask(engine, PROMPT, replace(GREEDY, max_tokens=60))
    for _ in range(10):
        turn(engine)
    request = engine.scheduler.running[0]
    held, pool = list(request.blocks), engine.scheduler.pool
    switch(engine, "int8")
    assert request.blocks == held, "the request lost its blocks"
    drain(engine)
    assert len(output.tokens) == 60 and pool.cached == 0
    drain_of(engine, PROMPT)
    assert pool.cached > 0, "a new request publishes no blocks"


def test_a_recomputed_request_uses_the_new_weights(folder: Path) -> None:
    exact = {"dtype": "float32"}  # in bfloat16, kernels for few and many rows differ in the last bit
    engine = engine_on(folder, preemption="recompute", **exact)
    id, _ = ask(engine, PROMPT)
    for _ in range(5):
        turn(engine)
    switch(engine, "int8")
    engine.preempt(id)
    drain(engine)
    assert engine.scheduler.pool.cached > 0
    assert reply(engine) == reply(engine_on(folder, quantization="int8", prefix_cache=False, **exact))


NO_MEMORY = "CUDA out of memory. Tried to allocate 96.00 MiB. GPU 0 has a total capacity of ..."


def failing_at(monkeypatch: pytest.MonkeyPatch, layer: int, error: Exception) -> None:
    """Make the next change fail at this layer, once; 2 is the head."""
    whole, head, failed = PlainSource.layer, PlainSource.head, list[int]()

    def layer_that_fails(self: PlainSource, index: int, scheme: Any) -> Any:
        if index == layer and not failed:
            failed.append(index)
            raise error
        return whole(self, index, scheme)

    def head_that_fails(self: PlainSource, scheme: Any) -> Any:
        if layer == 2 and not failed:
            failed.append(layer)
            raise error
        return head(self, scheme)

    monkeypatch.setattr(PlainSource, "layer", layer_that_fails)
    monkeypatch.setattr(PlainSource, "head", head_that_fails)


ERRORS = [
    (torch.OutOfMemoryError(NO_MEMORY), "OutOfMemoryError: CUDA out of memory"),
    (RuntimeError("can't allocate memory.\nframe #0"), "RuntimeError: can't allocate memory"),
    (BadInput("a library cannot be used here"), "a library cannot be used here"),
    (OSError("gone"), "OSError: gone"),
]


@pytest.mark.parametrize(
    ("layer", "error", "words"),
    [
        (2, *ERRORS[0]), (1, *ERRORS[1]), (1, *ERRORS[2]),
        *soak((1, *ERRORS[0]), (2, *ERRORS[1]), (2, *ERRORS[2]), (1, *ERRORS[3]), (2, *ERRORS[3])),
        *soak(*((0, *each) for each in ERRORS)),
    ],
)  # fmt: skip
def test_a_failure_in_the_middle_leaves_the_old_scheme(
    folder: Path, monkeypatch: pytest.MonkeyPatch, layer: int, error: Exception, words: str
) -> None:
    engine = engine_on(folder)
    plain = reply(engine)
    _, output = ask(engine, PROMPT[:-1])
    turn(engine)
    seen = recorded_events(engine)
    failing_at(monkeypatch, layer, error)
    engine.set_quantization("int4")
    finish_change(engine)
    shot = engine.snapshot()
    assert shot.quantization == "none" and shot.change is not None
    assert (shot.change.error, shot.change.over) == (words, True)
    assert [event.error for event in seen if isinstance(event, events.Quantized)] == [words]
    drain(engine)
    assert output.finish is Finish.LENGTH
    assert engine.scheduler.cached_tokens > 0, "blocks cached with these weights were lost"
    assert reply(engine) == plain
    switch(engine, "int4")
    assert engine.snapshot().change is None, "the old error is reported after a success"


def test_a_change_works_without_mapping_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, asked = engine_on(folder), list[Path]()
    plain = reply(engine)

    def refused(file: Path, framework: str) -> NoReturn:
        asked.append(file)
        raise MemoryError("Cannot allocate memory")

    monkeypatch.setattr(checkpoint, "safe_open", refused)
    switch(engine, "int8")
    switch(engine, "none")
    assert reply(engine) == plain and asked


def test_the_engine_ends_if_restoring_the_old_scheme_fails(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_on(folder)

    def gone(self: PlainSource, index: int, scheme: Any) -> Any:
        raise OSError("the disk is gone")

    monkeypatch.setattr(PlainSource, "layer", gone)
    engine.set_quantization("int8")
    with pytest.raises(EngineDead, match=r"cannot reload the weights of none: OSError: the disk is gone"):
        finish_change(engine)


def test_a_change_can_be_cancelled(folder: Path) -> None:
    engine = engine_on(folder)
    plain, seen = reply(engine), recorded_events(engine)
    engine.set_quantization("int8")
    turn(engine)
    turn(engine)
    with pytest.raises(BadInput, match=r"changing to int8; wait, or cancel"):
        engine.set_quantization("int4")
    engine.cancel_quantization()
    with pytest.raises(BadInput, match=r"changing back to none; wait") as refused:
        engine.set_quantization("int4")
    assert "cancel" not in str(refused.value), "it has been"
    finish_change(engine)
    assert engine.snapshot().quantization == "none"
    assert [event.error for event in seen if isinstance(event, events.Quantized)] == ["it was canceled"]
    assert [event.done for event in seen if isinstance(event, events.Quantizing)] == [0, 0, 1, 0]
    assert reply(engine) == plain
    engine.cancel_quantization()  # no change in progress: no-op
    assert engine.snapshot().change is not None
    engine.set_quantization("none")  # the current scheme: clears the cancelled change
    assert engine.snapshot().change is None


def test_an_unavailable_scheme_changes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_on(folder)
    layers = [id(layer) for layer in _decoder(engine).layers]
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: None if name == "bitsandbytes" else found(name, *more),
    )
    for scheme, words in (
        ("bnb-int8", "bitsandbytes is not installed"),
        ("bnb-nf4", "bitsandbytes is not installed"),
        ("fp8", "need an NVIDIA GPU"),
        ("int3", "no scheme has that name"),
    ):
        with pytest.raises(BadInput, match=words):
            engine.set_quantization(scheme)
        with pytest.raises(BadInput, match=words):
            engine_on(folder, quantization=scheme)
    assert not engine.busy and [id(layer) for layer in _decoder(engine).layers] == layers
    engine.set_quantization("none")  # already the scheme: no-op
    assert not engine.busy
    views = {view.name: view for view in engine.snapshot().schemes}
    assert views["int8"].why_not == "" and views["int8"].nbytes < views["none"].nbytes < views["fp32"].nbytes
    assert "not installed" in views["bnb-fp4"].why_not


def _decoder(engine: Engine) -> Decoder:
    model = engine.runner.model  # type: ignore[attr-defined]
    assert isinstance(model, Decoder)
    return model


def test_the_reported_bytes_are_the_bytes_in_memory(folder: Path) -> None:
    for scheme in ("none", "int8", "int4", "fp32"):
        engine = engine_on(folder, quantization=scheme)
        views = {view.name: view.nbytes for view in engine.snapshot().schemes}
        assert engine.snapshot().memory["weights"] == pytest.approx(views[scheme], rel=0.12)


def test_the_plain_weight_is_released(folder: Path) -> None:
    """A module that kept it would need its bytes twice."""
    made = int8.Int8Table(torch.randn(512, 256), None)
    assert sum(each.nbytes for each in made.buffers()) < 512 * 256 * 1.1
    assert not any(isinstance(each, torch.Tensor) for each in vars(made).values())
