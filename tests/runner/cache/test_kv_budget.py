"""A budget of tokens on real models, compared with dense attention that masks what was evicted."""

import json
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.api.config import EngineConfig
from engine.api.errors import BadInput
from engine.api.events import Delta
from engine.execution.protocol import StepResult
from engine.serving.engine import Engine
from tests.cases import case
from tests.outputs import Output
from tests.runner.graphs.plain_stage import staged
from tests.runner.graphs.test_precompile import with_stage
from tests.runner.small import GREEDY, ask, drain, engine_on, run_to

LONG = [1, *(40 + n * 7 % 150 for n in range(189))]
BUDGET: dict[str, Any] = {"kv_budget": 112, "kv_sinks": 4}
POLICIES = ("norms", "attention")


class Dense:
    """A model read token by token, with all keys and values in lists and a mask of what was evicted."""

    def __init__(self, engine: Engine, policy: str) -> None:
        self.model, self.policy = engine.runner.model, policy
        self.specs = self.model.config.layers
        self.keys: list[list[Tensor]] = [[] for _ in self.specs]
        self.values: list[list[Tensor]] = [[] for _ in self.specs]
        self.seen: list[int] = []
        self.weights: dict[int, float] = {}  # by position: the attention it received from the last token

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.keys[layer].append(k[0])
        self.values[layer].append(v[0])
        spec, out = self.specs[layer], torch.empty(1, self.specs[layer].heads, v.shape[-1])
        keys, values = (
            torch.stack([each[layer][at] for at in self.seen]) for each in (self.keys, self.values)
        )
        for head in range(spec.heads):
            group = head // (spec.heads // spec.kv_heads)
            weights = (keys[:, group] @ q[0, head] * spec.scale).softmax(0)
            out[0, head] = weights @ values[:, group]
            for at, weight in zip(self.seen, weights.tolist(), strict=True):
                self.weights[at] += weight
        return out

    def read(self, token: int, at: int) -> Tensor:
        self.seen.append(at)
        self.weights = dict.fromkeys(self.seen, 0.0)
        hidden = self.model.forward(torch.tensor([token]), torch.tensor([at]), self.attend)
        return self.model.logits(hidden)[0].log_softmax(-1)

    def score(self, at: int, block: int) -> float:
        """What a token adds to the score of a block, of 16 tokens, when it fills the last one."""
        if self.policy == "attention":
            return sum(weight for place, weight in self.weights.items() if place // 16 == block)
        cells = [keys[place] for keys in self.keys for place in range(16 * block, 16 * block + 16)]
        return -float(torch.stack(cells).norm(dim=-1).log().mean()) if at // 16 == block else 0.0


@torch.inference_mode()
def dense_reply(engine: Engine, prompt: list[int], count: int, policy: str) -> tuple[list[int], list[float]]:
    """The greedy reply, and the log-probability of each prompt token after the first."""
    dense, tokens, logprobs = Dense(engine, policy), list(prompt), []
    scores: dict[int, float] = {}
    for at in range(len(prompt) + count):
        if len(dense.seen) == 112:  # 7 blocks: one goes, but not the first or the 2 newest
            evicted = min(list(scores)[1:-2], key=lambda block: scores[block])
            del scores[evicted]
            dense.seen = [each for each in dense.seen if each // 16 != evicted]
        found = dense.read(tokens[at], at)
        if (at + 1) % 16 == 0:
            scores[at // 16] = 0.0
            for block in scores:
                scores[block] += dense.score(at, block)
        if at + 1 < len(prompt):
            logprobs.append(float(found[tokens[at + 1]]))
        else:
            tokens.append(int(found.argmax()))
    return tokens[len(prompt) : len(prompt) + count], logprobs


def reply(engine: Engine, prompt: list[int], count: int = 40) -> Output:
    _, output = ask(engine, prompt, replace(GREEDY, max_tokens=count))
    drain(engine)
    return output


@pytest.mark.parametrize("policy", POLICIES)
def test_evicted_blocks_are_masked_as_in_dense_attention(llama: Path, policy: str) -> None:
    engine = engine_on(llama, kv_eviction=policy, dtype="float32", **BUDGET)
    found, deltas = reply(engine, LONG, 24), list[Delta]()
    engine.submit(LONG, replace(GREEDY, prompt_logprobs=0), deltas.append)
    drain(engine)
    tokens, logprobs = dense_reply(engine, LONG, 24, policy)
    assert found.tokens == tokens
    read = [each.logprob for delta in deltas for each in delta.prompt_logprobs]
    assert read == pytest.approx(logprobs, abs=2e-4)


@pytest.mark.parametrize("policy", ["norms", pytest.param("attention", marks=pytest.mark.soak)])
def test_a_request_longer_than_the_cache_gives_the_same_reply(llama: Path, policy: str) -> None:
    """Preempted, chunked or beside others: the same blocks are evicted."""
    config = BUDGET | {"kv_eviction": policy}
    whole = reply(engine_on(llama, **config), LONG)
    packed = ({"chunked_prefill": False, "kv_scheme": each} for each in ("int8", "int4"))
    for changes in ({"depth": 1}, {"max_step_tokens": 7}, *packed):
        expected = whole if len(changes) == 1 else reply(engine_on(llama, **config, **changes), LONG)
        engine = engine_on(llama, blocks=10, **config, **changes)
        (id, output), others = ask(engine, LONG, replace(GREEDY, max_tokens=40)), ask(engine, LONG[:50])
        run_to(engine, output, 25)
        engine.preempt(id)
        drain(engine)
        assert output.reply == expected.reply
        assert others[1].finish is not None


def test_drafts_of_the_first_layers_read_the_shorter_table(llama: Path, tmp_path: Path) -> None:
    """Else they would write into blocks of other requests."""
    folder = copytree(llama, tmp_path / "exits")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"early_exit_layers": [1]}))
    engine = engine_on(folder, **BUDGET)
    plain, drafted = (
        ask(engine, LONG, replace(GREEDY, max_tokens=40, speculate=kind))[1] for kind in ("", "exit")
    )
    drain(engine)
    assert drafted.tokens == plain.tokens == reply(engine_on(llama, **BUDGET), LONG).tokens


@pytest.mark.parametrize("policy", POLICIES)
def test_captured_decode_steps_read_the_shorter_table(llama: Path, policy: str) -> None:
    """By attention, steps that fill a block also sum it up."""
    config = BUDGET | {"kv_eviction": policy}
    plain, engine = reply(engine_on(llama, **config), LONG), engine_on(llama, depth=1, **config)
    stage = staged(engine)
    assert reply(engine, LONG).reply == plain.reply
    assert len(stage.flags) == 39  # all steps but those of the prompt
    assert (stage.pieces, stage.sizes) == ([112] + [16] * 5, [1] * 39)


# Rows that fill blocks in different steps, or in the same one; some begin with blocks of others.
PROMPTS = [LONG, LONG[:100] + LONG[20:80], LONG[10:], LONG[:37], LONG[3:]]


def replies(engine: Engine) -> list[list[int]]:
    """The replies to all prompts at once, every second one with drafts."""
    params = [replace(GREEDY, max_tokens=40, speculate=kind) for kind in ("", "ngram")]
    ask(engine, LONG[:100])  # leaves its blocks in the prefix cache
    drain(engine)
    outputs = [ask(engine, each, params[n % 2])[1] for n, each in enumerate(PROMPTS)]
    drain(engine)
    assert not any(each.error for each in outputs)
    return [each.tokens for each in outputs]


def noted(engine: Engine) -> dict[tuple[int, int], np.ndarray]:
    """The scores that steps report from now on, by request and the block that was filled."""
    found, collect = dict[tuple[int, int], np.ndarray](), engine.runner.collect

    def noting(handle: Any) -> StepResult:
        result = collect(handle)
        found.update({(each.request, each.block): each.scores for each in result.scores})
        return result

    engine.runner.collect = noting  # type: ignore[method-assign]
    return found


def same_scores(mine: dict[tuple[int, int], np.ndarray], theirs: dict[tuple[int, int], np.ndarray]) -> bool:
    """Also if more blocks were found in the prefix cache in one of the two."""
    both = mine.keys() & theirs.keys()
    assert len(both) >= 20
    return all(np.allclose(mine[each], theirs[each], rtol=1e-3, atol=1e-3) for each in both)


def test_attention_is_summed_up_beside_other_rows(llama: Path) -> None:
    """In steps with pieces of prompts and with drafts. Shared blocks serve all their readers."""
    config = BUDGET | {"kv_eviction": "attention"}
    plain = engine_on(llama, **config)
    scores, expected = noted(plain), replies(plain)
    assert expected == [reply(engine_on(llama, **config), each).tokens for each in PROMPTS]
    for way, prepare in {"captured": staged, "launched": with_stage}.items():
        with case(way):
            engine = engine_on(llama, depth=1, **config)
            prepare(engine)
            found = noted(engine)
            assert replies(engine) == expected
            assert same_scores(found, scores)


def kept(engine: Engine, prompt: list[int], count: int) -> list[int]:
    """The blocks that a request still holds after some tokens of its reply."""
    _, output = ask(engine, prompt, replace(GREEDY, max_tokens=count + 5))
    run_to(engine, output, count)
    found = [at for at, block in enumerate(engine.scheduler.running[0].blocks) if block >= 0]
    drain(engine)
    return found


@pytest.mark.cuda
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("depth", [0, 1])
def test_the_same_blocks_are_evicted_on_a_gpu(llama: Path, depth: int, graphs: bool, policy: str) -> None:
    config = BUDGET | {"kv_eviction": policy, "dtype": "float32"}
    plain, engine = engine_on(llama, **config), engine_on(llama, device="cuda", depth=depth, **config)
    engine.set_switch("graphs", graphs)
    for _ in range(2):  # the second one replays graphs
        assert reply(engine, LONG).reply == reply(plain, LONG).reply
    expected_scores, found = noted(plain), noted(engine)
    for count in (5, 20, 36):
        assert kept(engine, LONG, count) == kept(plain, LONG, count)
    assert same_scores(found, expected_scores)


@pytest.mark.cuda
@pytest.mark.parametrize("scheme", ["int8", "fp8", "int4"])
def test_attention_to_a_packed_cache_evicts_the_same_blocks_on_a_gpu(llama: Path, scheme: str) -> None:
    config = BUDGET | {"kv_eviction": "attention", "dtype": "float32", "kv_scheme": scheme}
    plain, engine = (engine_on(llama, device=device, **config) for device in ("cpu", "cuda"))
    assert kept(engine, LONG, 30) == kept(plain, LONG, 30)


@pytest.mark.cuda
@pytest.mark.parametrize("graphs", [True, False])
def test_attention_is_summed_up_beside_other_rows_on_a_gpu(llama: Path, graphs: bool) -> None:
    config = BUDGET | {"kv_eviction": "attention", "dtype": "float32"}
    plain, engine = engine_on(llama, **config), engine_on(llama, device="cuda", depth=1, **config)
    engine.set_switch("graphs", graphs)
    expected, found = noted(plain), noted(engine)
    for _ in range(2):  # the second time, all is replayed
        assert replies(engine) == replies(plain)
        assert same_scores(found, expected)


@pytest.mark.cuda
def test_the_torch_backend_scores_by_attention_on_a_gpu(llama: Path) -> None:
    config = BUDGET | {"kv_eviction": "attention", "dtype": "float32", "attention": "torch"}
    plain, engine = (engine_on(llama, device=device, **config) for device in ("cpu", "cuda"))
    assert kept(engine, LONG, 30) == kept(plain, LONG, 30)


def test_a_budget_longer_than_the_request_changes_nothing(llama: Path) -> None:
    plain = reply(engine_on(llama), LONG).reply
    assert reply(engine_on(llama, kv_budget=240), LONG).reply == plain
    assert reply(engine_on(llama, **BUDGET), LONG).reply != plain


def test_the_policies_differ(llama: Path) -> None:
    """Else the test of dense attention would say little."""
    held = []
    for policy in POLICIES:
        engine = engine_on(llama, kv_eviction=policy, **BUDGET)
        held.append(kept(engine, LONG, 20))
    assert held[0] != held[1]


def test_what_cannot_hold_is_refused(llama: Path, checkpoint) -> None:  # type: ignore[no-untyped-def]
    longest = engine_on(llama).runner.model.config.max_context
    assert engine_on(llama, blocks=7, **BUDGET).limits.context == longest > 112
    with pytest.raises(
        BadInput, match="a budget of 112 tokens needs 7 blocks of 16 for one request, but the"
    ):
        engine_on(llama, blocks=6, **BUDGET)
    with pytest.raises(BadInput, match="some layers of this model have a window of their own"):
        engine_on(checkpoint("mistral")[0], **BUDGET)
    with pytest.raises(BadInput, match="kv_budget is not available: this model caches latents"):
        engine_on(checkpoint("deepseek_v3")[0], **BUDGET)
    with pytest.raises(BadInput, match="scores of this model fall with the distance of tokens"):
        engine_on(checkpoint("bloom")[0], **BUDGET)
    for other in ({"kv_window": 64}, {"kv_disk": "/nowhere:1"}, {"kv_host": 1.0}, {"host_blocks": 4}):
        with pytest.raises(BadInput, match=f"kv_budget cannot be used with {next(iter(other))}"):
            EngineConfig(model="m", **BUDGET, **other)
    with pytest.raises(
        BadInput, match="draft: a draft model cannot read tokens that have left the kv_window or"
    ):
        engine_on(llama, draft=str(llama), **BUDGET)
