"""A window on real models: a prompt longer than the cache, and a reply that nothing else changes."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.api.cache_spec import LayerSpec
from engine.api.errors import BadInput
from engine.attention import registry
from engine.attention.torch_backend import TorchAttention
from tests.cases import soak
from tests.outputs import Output
from tests.runner.small import GREEDY, ask, drain, engine_on, run_to

LONG = [1, *(40 + n * 7 % 150 for n in range(169))]
WINDOW = {"kv_window": 32, "kv_sinks": 4}
TIGHT = 8  # blocks: 128 tokens, fewer than a request has


def reply(engine, prompt, count=40) -> Output:  # type: ignore[no-untyped-def]
    _, output = ask(engine, prompt, replace(GREEDY, max_tokens=count))
    drain(engine)
    return output


@pytest.mark.parametrize("scheme", ["int4", *soak("none", "int8")])
def test_a_request_longer_than_the_cache_gives_the_same_reply(llama: Path, scheme: str) -> None:
    """Compared with the same window and enough blocks for the whole request."""
    whole = reply(engine_on(llama, kv_scheme=scheme, prefix_cache=False, **WINDOW), LONG)
    variants = ({"depth": 1}, {"max_step_tokens": 7}, {"chunked_prefill": False})
    for changes in variants if scheme == "none" else variants[:1]:
        engine = engine_on(llama, kv_scheme=scheme, blocks=TIGHT, **WINDOW, **changes)
        assert len(LONG) + 40 > TIGHT * 16
        (id, output), others = ask(engine, LONG, replace(GREEDY, max_tokens=40)), ask(engine, LONG[:50])
        run_to(engine, output, 5)
        engine.preempt(id)
        drain(engine)
        assert output.reply == whole.reply
        assert others[1].finish is not None
        turns = [*LONG, *output.tokens, 50, 51]
        assert (
            reply(engine, turns, 20).tokens
            == reply(engine_on(llama, kv_scheme=scheme, **WINDOW), turns, 20).tokens
        )


def test_a_window_longer_than_the_request_changes_nothing(llama: Path) -> None:
    assert reply(engine_on(llama, kv_window=512), LONG).reply == reply(engine_on(llama), LONG).reply
    assert reply(engine_on(llama, **WINDOW), LONG).reply != reply(engine_on(llama), LONG).reply


def test_a_narrower_window_of_the_model_is_kept(checkpoint) -> None:  # type: ignore[no-untyped-def]
    """The window of Mistral is 21 tokens here, without sinks."""
    folder, _ = checkpoint("mistral")
    engine = engine_on(folder, **WINDOW)
    assert {(each.spec.window, each.spec.kept) for each in engine.runner.store.layers} == {(21, 0)}
    assert reply(engine, LONG).reply == reply(engine_on(folder), LONG).reply


def test_chunks_of_the_model_are_kept(checkpoint) -> None:  # type: ignore[no-untyped-def]
    """Those of Llama 4 have 21 tokens here, and a window must cover one."""
    folder, _ = checkpoint("llama4")
    engine = engine_on(folder, **WINDOW)
    kept = [(each.spec.window, each.spec.chunk, each.spec.kept) for each in engine.runner.store.layers]
    assert kept == [(None, 21, 0), (32, None, 4), (None, 21, 0)]
    assert reply(engine, LONG, 1).finish is not None
    with pytest.raises(BadInput, match="kv_window must be at least 21 tokens, the chunk within"):
        engine_on(folder, kv_window=20)


def test_the_context_limit_with_a_window(llama: Path) -> None:
    longest = engine_on(llama).runner.model.config.max_context
    assert engine_on(llama, blocks=TIGHT, **WINDOW).limits.context == longest > TIGHT * 16
    with pytest.raises(
        BadInput, match="a window of 32 tokens needs 7 blocks of 16 for one request, but the cache has 6"
    ):
        engine_on(llama, blocks=6, **WINDOW)


def test_a_backend_without_sinks_is_refused(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Old(TorchAttention):
        name = "old"
        keeps_first = False

    monkeypatch.setitem(registry.BACKENDS, "old", Old)
    spec = LayerSpec(heads=2, kv_heads=1, key_dim=8, value_dim=8, scale=1.0, window=64, kept=4)
    assert "does not support a window that keeps the first" in str(
        registry.why_not("old", torch.device("cpu"), [spec], torch.float32)
    )
    with pytest.raises(BadInput, match=r"'old': it does not support a window .*; available here: .*torch"):
        engine_on(llama, attention="old", **WINDOW)
    assert engine_on(llama, attention="old", kv_window=32, kv_sinks=0)
