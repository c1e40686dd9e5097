"""Medusa heads from a folder guess what a plain torch model of them guesses, and change no reply."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from engine.api.errors import BadCheckpoint, BadInput
from engine.execution.draft.heads import HeadDrafter
from engine.execution.draft.medusa import read_medusa
from engine.models.find import find_model
from engine.models.registry import load_model
from tests.cases import soak
from tests.examples import TIMES
from tests.runner.replies.test_company import A, B, Workload, assert_nothing_changes, engine_for, workloads
from tests.runner.replies.test_replay import CONFIG, assert_same, replayed
from tests.runner.rows.drafted import REPLAYED, on, record_drafts, replaying
from tests.runner.rows.test_speculation import LETTERS, always_draft, speculative
from tests.runner.small import GREEDY, alone, ask, drain, engine_on

FILE, HEADS, LAYERS = "medusa_lm_head.safetensors", 3, 2


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.act = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.act(self.linear(x))  # type: ignore[no-any-return]


def reference(width: int, vocab: int) -> nn.ModuleList:
    """The heads as their paper trains and saves them."""
    torch.manual_seed(7)
    return nn.ModuleList(
        nn.Sequential(*(Residual(width) for _ in range(LAYERS)), nn.Linear(width, vocab, bias=False))
        for _ in range(HEADS)
    )


@pytest.fixture(scope="module")
def medusa(
    checkpoint: Callable[[str], tuple[Path, Any]], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, nn.ModuleList]:
    folder, config = tmp_path_factory.mktemp("medusa"), checkpoint("llama")[1].config
    heads = reference(config.hidden_size, config.vocab_size)
    (folder / "config.json").write_text(json.dumps({"medusa_num_heads": HEADS, "medusa_num_layers": LAYERS}))
    save_file(heads.state_dict(), folder / FILE)
    return folder, heads


@pytest.mark.parametrize(
    ("way", "quantization"),
    [
        ("", "none"),
        ("staging", "int8"),
        *soak(("", "int8"), ("staging", "none")),
        *(pytest.param("cuda", scheme, marks=pytest.mark.cuda) for scheme in ("none", "int8")),
    ],
)
def test_drafts_are_those_of_the_reference(
    checkpoint: Callable[[str], tuple[Path, Any]],
    medusa: tuple[Path, nn.ModuleList],
    monkeypatch: pytest.MonkeyPatch,
    quantization: str,
    way: str,
) -> None:
    """Also after a prefix hit. Over a quantized model, of what that model computes."""
    (llama, base), (folder, heads) = checkpoint("llama"), medusa
    made: list[tuple[int, tuple[int, ...]]] = []
    drafts = HeadDrafter.drafts

    def recorded(self: HeadDrafter, rows: Any, sample: Any) -> dict[int, tuple[int, ...]]:
        found = drafts(self, rows, sample)
        made.extend((row.start, found[row.request]) for row in rows)
        return found

    monkeypatch.setattr(HeadDrafter, "drafts", recorded)
    engine, plain = (
        replaying(way, engine_on(llama, draft=draft, quantization=quantization, **on(way)))
        for draft in (str(folder), None)
    )
    always_draft(engine)
    prompt, params = [1, A, B, *range(3, 40)], replace(GREEDY, max_tokens=40, logit_bias=LETTERS)
    _, expected = ask(plain, prompt, params)
    drain(plain)
    for _ in range(2):  # the second prompt is in the prefix cache
        made.clear()
        _, output = ask(engine, prompt, params.changed(speculate="draft", draft_tokens=HEADS))
        drain(engine)
        text = prompt + output.tokens
        assert output.tokens == expected.tokens
        assert len(made) >= 4 and max(len(tokens) for _, tokens in made) == HEADS
        if quantization != "none":
            continue
        bias = torch.zeros(base.config.vocab_size)
        bias[[*LETTERS]] = torch.tensor([*LETTERS.values()])
        with torch.no_grad():
            hidden = base.model(torch.tensor([text])).last_hidden_state[0]
            for start, tokens in made:
                guesses = [int((head(hidden[start - 1]) + bias).argmax()) for head in heads]
                assert list(tokens) == guesses[: len(tokens)]


@settings(max_examples=3 * TIMES, phases=[Phase.generate])
@given(work=workloads, others=st.lists(st.sampled_from(("", "draft", "ngram")), min_size=5, max_size=5))
@pytest.mark.parametrize("way", ["", *REPLAYED])
def test_heads_do_not_change_a_reply(
    llama: Path, medusa: tuple[Path, nn.ModuleList], way: str, work: Workload, others: list[str]
) -> None:
    engine = replaying(way, always_draft(engine_for(llama, work, draft=str(medusa[0]), **on(way))))
    assert_nothing_changes(engine, llama, speculative(work, ["draft"] * 5, others))


def test_a_recording_replays_with_heads(
    llama: Path, medusa: tuple[Path, nn.ModuleList], tmp_path: Path
) -> None:
    """Among others a request that is swapped out, whose drafts then start without a hidden state."""
    draft = {"draft": str(medusa[0])}
    engine = always_draft(engine_on(llama, **CONFIG, **draft))
    record_drafts(engine, path := tmp_path / "recording", [1, A, B, *range(3, 40)])
    assert engine.scheduler.speculator.total().accepted > 3
    assert_same(replayed(path, llama, **draft))


@pytest.mark.parametrize("temperature", [*soak(0.0), 0.8])
def test_accepted_drafts_shorten_a_reply(
    llama: Path, medusa: tuple[Path, nn.ModuleList], temperature: float
) -> None:
    params = replace(GREEDY, temperature=temperature, max_tokens=60, seed=3, logit_bias=LETTERS, logprobs=1)
    engine = always_draft(engine_on(llama, draft=str(medusa[0])))
    _, output = ask(engine, [1, A, B, A, B], params.changed(speculate="draft", draft_tokens=8))
    drain(engine)
    expected = alone(llama, [1, A, B, A, B], params)
    assert output.reply == expected.reply
    assert [each.logprob for each in output.logprobs] == [each.logprob for each in expected.logprobs]
    total = engine.scheduler.speculator.total()
    assert total.accepted >= 3 and total.drafted <= HEADS * total.verifications


def test_heads_may_share_the_output_matrix_of_the_model(
    checkpoint: Callable[[str], tuple[Path, Any]], medusa: tuple[Path, nn.ModuleList], tmp_path: Path
) -> None:
    llama, base = checkpoint("llama")
    model = load_model(find_model(str(llama)), device=torch.device("cpu"), dtype="float32", max_context=None)
    weights = load_file(medusa[0] / FILE)
    whole = {**weights} | {
        f"{head}.{LAYERS}.weight": base.lm_head.weight.detach().clone() for head in range(HEADS)
    }
    shared = {name: tensor for name, tensor in weights.items() if f".{LAYERS}." not in name}
    found = []
    for tensors in (whole, shared):
        (tmp_path / "config.json").write_text(json.dumps(GOOD))
        save_file(tensors, tmp_path / FILE)
        heads = read_medusa(tmp_path, model, torch.device("cpu"))
        found.append(heads.logits(torch.ones(2, base.config.hidden_size), HEADS))
    assert found[0].shape == (HEADS, 2, base.config.vocab_size)
    assert torch.allclose(*found, atol=1e-5)


Change = Callable[[dict[str, Tensor]], object]


def written(folder: Path, source: Path, config: object, change: Change) -> None:
    (folder / "config.json").write_text(json.dumps(config))
    change(tensors := load_file(source / FILE))
    save_file(tensors, folder / FILE)


GOOD = {"medusa_num_heads": HEADS, "medusa_num_layers": LAYERS}


@pytest.mark.parametrize(
    ("config", "change", "why"),
    [
        (GOOD, lambda each: each.pop("1.0.linear.bias"), "1.0.linear.bias is missing"),
        (GOOD, lambda each: each.update(more=torch.ones(1)), "more is unknown"),
        (GOOD, lambda each: each.update({"0.2.weight": torch.ones(3, 3)}), "0.2.weight is .3, 3."),
        (GOOD, lambda each: each.update({"0.0.linear.bias": each["0.0.linear.bias"].int()}), "holds I32"),
        (GOOD, lambda each: each["2.1.linear.weight"].fill_(float("nan")), "2.1.linear.weight .* not finite"),
        ({**GOOD, "medusa_num_heads": 10**9}, len, "medusa_num_heads"),
        ({**GOOD, "medusa_num_heads": None}, len, "medusa_num_heads"),
        ({**GOOD, "medusa_num_layers": "1"}, len, "medusa_num_layers"),
    ],
)
def test_hostile_heads_are_refused(
    llama: Path,
    medusa: tuple[Path, nn.ModuleList],
    tmp_path: Path,
    config: object,
    change: Change,
    why: str,
) -> None:
    written(tmp_path, medusa[0], config, change)
    with pytest.raises(BadCheckpoint, match=why):
        engine_on(llama, draft=str(tmp_path))


def test_pickled_heads_are_refused(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GOOD))
    (tmp_path / "medusa_lm_head.pt").write_bytes(b"")
    with pytest.raises(BadCheckpoint, match="is a pickle"):
        engine_on(llama, draft=str(tmp_path))


def test_heads_are_refused_where_they_do_not_run(llama: Path, medusa: tuple[Path, nn.ModuleList]) -> None:
    cpu = torch.device("cpu")
    model = load_model(find_model(str(llama)), device=cpu, dtype="float32", max_context=None)
    with pytest.raises(BadInput, match="one process"):
        read_medusa(medusa[0], model, cpu, 2)
    with pytest.raises(BadInput, match="runs natively"):
        read_medusa(medusa[0], object(), cpu)
    with pytest.raises(BadInput, match="kv_window"):
        engine_on(llama, draft=str(medusa[0]), kv_window=64)
