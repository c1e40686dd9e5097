"""A head for multi-token prediction guesses what a plain model of it guesses, and changes no reply."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from engine.api.config import EngineConfig, ModelPlace
from engine.api.errors import BadCheckpoint, BadInput
from engine.models.decoder import Decoder
from engine.models.layers.step import StepContext
from engine.models.registry import load_model
from engine.serving.engine import Engine
from tests.cases import soak
from tests.examples import TIMES
from tests.models.families import GROUPED, reference
from tests.models.tiny import plain_attend
from tests.outputs import Output
from tests.quant.packers import Compressed, Fp8, write
from tests.runner.letters import VOCAB, byte_tokenizer
from tests.runner.replies.test_company import A, B, Workload, assert_nothing_changes, engine_for, workloads
from tests.runner.replies.test_replay import CONFIG, assert_same, replayed
from tests.runner.rows.drafted import REPLAYED, noted_drafts, on, record_drafts, replaying
from tests.runner.rows.test_speculation import LETTERS, always_draft, speculative
from tests.runner.small import GREEDY, alone, ask, drain, engine_on, run_to, turn_until

FILE = "model.safetensors"
QWEN = {
    "layer": "mtp.layers.0.",
    "embedding_norm": "mtp.pre_fc_norm_embedding.",
    "hidden_norm": "mtp.pre_fc_norm_hidden.",
    "join": "mtp.fc.",
    "norm": "mtp.norm.",
}
LAST = {
    "layer": "model.layers.3.",
    "embedding_norm": "model.layers.3.enorm.",
    "hidden_norm": "model.layers.3.hnorm.",
    "join": "model.layers.3.eh_proj.",
    "norm": "model.layers.3.shared_head.norm.",
}
# By family: a layer of the model's whose kind the head's is, and the names.
HEADS = {"qwen3_next": (1, QWEN), "deepseek_v3": (2, LAST), "glm4_moe": (2, LAST)}
PROMPT = [1, A, B, *range(3, 40)]  # two full blocks and more


class Head(nn.Module):
    """What the papers and the models' authors write, with a layer of transformers'."""

    def __init__(self, base: Any, at: int) -> None:
        super().__init__()
        norm, width = base.model.norm, base.config.hidden_size
        layer = base.model.layers[at]
        torch.manual_seed(11)
        self.layer = type(layer)(base.config, at).eval()
        self.embedding_norm, self.hidden_norm, self.norm = (
            type(norm)(width, eps=base.config.rms_norm_eps) for _ in range(3)
        )
        self.join = nn.Linear(2 * width, width, bias=False)
        for name, tensor in self.state_dict().items():
            if tensor.dim() == 1 and not name.endswith("bias"):
                tensor.uniform_(0.5, 1.5)
            else:
                tensor.normal_(0, 0.2)

    @torch.no_grad()
    def hidden(self, base: Any, ids: list[int], before: Tensor) -> Tensor:
        """The state after the last token, given those before each."""
        embedded, at = base.model.embed_tokens(torch.tensor([ids])), torch.arange(len(ids))[None]
        x = self.join(torch.cat((self.embedding_norm(embedded), self.hidden_norm(before[None])), -1))
        hidden = torch.full((len(ids), len(ids)), float("-inf")).triu(1)
        angles = base.model.rotary_emb(x, at)
        out = self.layer(x, position_embeddings=angles, attention_mask=hidden[None, None], position_ids=at)
        last: Tensor = self.norm(out[0] if isinstance(out, tuple) else out)[0, -1]
        return last

    @torch.no_grad()
    def drafts(self, base: Any, ids: list[int], before: Tensor, count: int, bias: Tensor) -> list[int]:
        ids, found = list(ids), []
        for _ in range(count):
            state = self.hidden(base, ids, before)
            found.append(int((base.lm_head(state) + bias).argmax()))
            ids.append(found[-1])
            before = torch.cat((before, state[None]))
        return found


def tensors_of(head: Head, names: dict[str, str]) -> dict[str, Tensor]:
    found = {}
    for name, tensor in head.state_dict().items():
        part, _, rest = name.partition(".")
        found[f"{names[part]}{rest}"] = tensor.contiguous()
    return found


Made = tuple[Path, Any, Head]
Checkpoints = Callable[[str], Made]


@pytest.fixture(scope="session")
def headed(
    checkpoint: Callable[[str], tuple[Path, Any]], tmp_path_factory: pytest.TempPathFactory
) -> Checkpoints:
    """A family's checkpoint with a head, transformers' model, and the head's reference."""

    @cache
    def made(family: str) -> Made:
        folder = tmp_path_factory.mktemp("headed") / family
        if family == "glm4_moe":
            folder.mkdir()
            byte_tokenizer().save(str(folder / "tokenizer.json"))
            base = reference("Glm4Moe", {"vocab_size": VOCAB, **GROUPED, "head_dim": 24}, folder)
        else:
            source, base = checkpoint(family)
            shutil.copytree(source, folder)
        at, names = HEADS[family]
        head = Head(base, at)
        add(folder, tensors_of(head, names))
        if names is LAST:  # as published: with copies of what the model has
            width = base.config.hidden_size
            add(folder, {"model.layers.3.embed_tokens.weight": torch.zeros(VOCAB, width)})
            add(folder, {"model.layers.3.shared_head.head.weight": torch.zeros(VOCAB, width)})
            config = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
        return folder, base, head

    return made


def add(folder: Path, more: dict[str, Tensor]) -> None:
    tensors = load_file(folder / FILE)
    save_file(tensors | more, folder / FILE, {"format": "pt"})


@pytest.fixture(params=["qwen3_next", *soak("deepseek_v3", "glm4_moe")])
def made(request: pytest.FixtureRequest, headed: Checkpoints) -> Made:
    return headed(request.param)


def start(folder: Path, **more: Any) -> Engine:
    return always_draft(engine_on(folder, draft="mtp", **more))


@pytest.mark.parametrize("step_tokens", [7, *soak(None)])
def test_drafts_are_those_of_the_reference(
    made: Made, monkeypatch: pytest.MonkeyPatch, step_tokens: int | None
) -> None:
    """Also where drafts were rejected, in a prompt in pieces, and after a prefix hit, which lacks a state."""
    assert_as_reference(start(made[0], max_step_tokens=step_tokens), made, noted_drafts(monkeypatch))


@pytest.mark.parametrize("way", REPLAYED)
@pytest.mark.parametrize("family", ["glm4_moe", "deepseek_v3", "qwen3_next"])
def test_drafts_of_replayed_steps_are_those_of_the_reference(
    headed: Checkpoints, monkeypatch: pytest.MonkeyPatch, family: str, way: str
) -> None:
    if way == "staging" and family != "glm4_moe":
        pytest.skip("the stage for CPUs attends over keys and values only")
    made = headed(family)
    engine = replaying(way, start(made[0], **on(way)))
    assert_as_reference(engine, made, noted_drafts(monkeypatch))


def assert_as_reference(engine: Engine, made: Made, seen: Sequence[tuple[int, tuple[int, ...]]]) -> None:
    """`seen`: the drafts that the engine makes. Here it replies twice to one prompt."""
    folder, base, head = made
    params = replace(GREEDY, max_tokens=40, logit_bias=LETTERS)
    expected = alone(folder, PROMPT, params)
    bias = torch.zeros(VOCAB)
    bias[[*LETTERS]] = torch.tensor([*LETTERS.values()])
    for unknown in (None, 32):  # the second time, two blocks are in the prefix cache
        first = len(seen)
        _, output = ask(engine, PROMPT, params.changed(speculate="draft", draft_tokens=4))
        drain(engine)
        assert output.reply == expected.reply
        with torch.no_grad():
            states = base.model(torch.tensor([PROMPT + output.tokens])).last_hidden_state[0]
        before = torch.cat((torch.zeros(1, states.shape[1]), states))
        if unknown is not None:
            before[unknown] = 0
        assert len(seen) >= first + 10 and max(len(drafts) for _, drafts in seen[first:]) > 2
        for at, drafts in seen[first:]:
            text = (PROMPT + output.tokens)[: at + 1]
            assert head.drafts(base, text, before[: at + 1], len(drafts), bias) == list(drafts), at
    total = engine.scheduler.speculator.total()
    assert 0 < total.accepted < total.drafted


@pytest.mark.parametrize("temperature", [0.8, *soak(0.0)])
def test_a_head_that_is_right_shortens_a_reply(made: Made, tmp_path: Path, temperature: float) -> None:
    """A model whose next token depends on the last one only, and a head that computes the same."""
    folder, base, _ = made
    tensors = load_file(shutil.copytree(folder, tmp_path / "right") / FILE)
    names = QWEN if "mtp.fc.weight" in tensors else LAST
    for name, tensor in tensors.items():
        if any(each in name for each in ("o_proj", "out_proj", "down_proj")):
            tensor.zero_()
    eye = torch.eye(base.config.hidden_size)
    tensors[f"{names['join']}weight"] = torch.cat((eye, torch.zeros_like(eye)), 1)
    plain = torch.zeros_like if names is QWEN else torch.ones_like  # Qwen's norms add one
    tensors[f"{names['embedding_norm']}weight"] = plain(eye[0])
    tensors[f"{names['norm']}weight"] = tensors["model.norm.weight"].clone()
    save_file(tensors, tmp_path / "right" / FILE, {"format": "pt"})
    engine = start(tmp_path / "right")
    params = replace(GREEDY, temperature=temperature, max_tokens=60, seed=3, logprobs=1)
    _, output = ask(engine, PROMPT, params.changed(speculate="draft"))
    drain(engine)
    expected = alone(tmp_path / "right", PROMPT, params)
    assert output.reply == expected.reply
    assert [each.logprob for each in output.logprobs] == [each.logprob for each in expected.logprobs]
    total = engine.scheduler.speculator.total()
    assert total.accepted == total.drafted >= 45 and total.verifications <= 14


@settings(max_examples=2 * TIMES, phases=[Phase.generate])
@given(work=workloads, others=st.lists(st.sampled_from(("", "draft", "ngram")), min_size=5, max_size=5))
@pytest.mark.parametrize("family", ["qwen3_next", *soak("deepseek_v3")])
def test_a_head_changes_no_reply(headed: Checkpoints, family: str, work: Workload, others: list[str]) -> None:
    folder = headed(family)[0]
    engine = always_draft(engine_for(folder, work, draft="mtp"))
    assert_nothing_changes(engine, folder, speculative(work, ["draft"] * 5, others))


@settings(max_examples=2 * TIMES, phases=[Phase.generate])
@given(work=workloads, others=st.lists(st.sampled_from(("", "draft", "ngram")), min_size=5, max_size=5))
@pytest.mark.parametrize("way", REPLAYED)
def test_a_head_beside_replayed_steps_changes_no_reply(
    headed: Checkpoints, way: str, work: Workload, others: list[str]
) -> None:
    folder = headed("glm4_moe")[0]
    engine = replaying(way, always_draft(engine_for(folder, work, draft="mtp", **on(way))))
    assert_nothing_changes(engine, folder, speculative(work, ["draft"] * 5, others))


def cells(engine: Engine, id: int, count: int) -> Tensor:
    """The keys that the head has cached for the first tokens of a request."""
    blocks = engine.scheduler.requests[id].blocks
    return engine.runner.store.layers[-1].keys[blocks].flatten(0, 1)[:count]


@pytest.mark.parametrize("preemption", [*soak("swap"), "recompute"])
def test_what_the_head_caches_survives_preemption(headed: Checkpoints, preemption: str) -> None:
    """Also a fork. Only the first token after each may lack the state before it."""
    folder, found = headed("deepseek_v3")[0], []
    params = replace(GREEDY, max_tokens=40, logit_bias=LETTERS)
    for way in (None, preemption):
        engine = start(folder, preemption=way or "auto", host_blocks=16)
        id, output = ask(engine, PROMPT, params.changed(speculate="draft"))
        run_to(engine, output, 10)
        if way is not None:
            engine.preempt(id)
            turn_until(engine, lambda output=output: len(output.tokens) > 10)
        fork = engine.fork(id, Output())
        run_to(engine, output, 30)
        one, other = (engine.scheduler.requests[each].tokens[:55] for each in (id, fork))
        assert one == other and len(one) == 55
        found += [cells(engine, each, 55) for each in (id, fork)]
        drain(engine)
    plain, of_fork, preempted, of_its_fork = found
    for each, same in ((plain, preempted), (plain, of_fork), (preempted, of_its_fork)):
        assert ((each - same).abs() > 1e-4).flatten(1).any(1).sum() <= 1


@pytest.mark.soak
def test_a_recording_replays_with_a_head(headed: Checkpoints, tmp_path: Path) -> None:
    folder, draft = headed("qwen3_next")[0], {"draft": "mtp"}
    engine = always_draft(engine_on(folder, **CONFIG, **draft))
    record_drafts(engine, path := tmp_path / "recording", PROMPT)
    assert_same(replayed(path, folder, **draft))


@pytest.mark.parametrize("how", [{"kv_scheme": "int8"}, *soak({"quantization": "int8"})])
def test_a_head_beside_a_quantized_model_or_cache(headed: Checkpoints, how: dict[str, Any]) -> None:
    folder, params = headed("qwen3_next")[0], replace(GREEDY, max_tokens=40, logit_bias=LETTERS)
    _, expected = ask(plain := engine_on(folder, **how), PROMPT, params)
    drain(plain)
    engine = start(folder, **how)
    _, output = ask(engine, PROMPT, params.changed(speculate="draft"))
    drain(engine)
    assert output.reply == expected.reply and engine.scheduler.speculator.total().drafted > 10


def test_random_weights_have_a_head_too(headed: Checkpoints) -> None:
    engine = start(headed("deepseek_v3")[0], dummy_weights=True)
    _, output = ask(engine, PROMPT, GREEDY.changed(speculate="draft"))
    drain(engine)
    assert len(output.tokens) == GREEDY.max_tokens and engine.scheduler.speculator.total().drafted > 1


def test_a_head_is_read_only_if_it_is_to_draft(headed: Checkpoints) -> None:
    folder = headed("deepseek_v3")[0]
    without, engine = engine_on(folder), start(folder)
    assert (len(without.runner.store.layers), len(engine.runner.store.layers)) == (3, 4)
    assert without.runner.model.mtp is None and engine.runner.model.mtp is not None  # type: ignore[attr-defined]
    assert "draft" not in without.limits.speculation and "draft" in engine.limits.speculation


Change = Callable[[dict[str, Tensor]], object]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda each: each.pop("mtp.norm.weight"), "mtp.norm.weight is missing"),
        (lambda each: each.update({"mtp.fc.weight": torch.ones(3, 3)}), "mtp.fc.weight is .3, 3."),
        (lambda each: each.update({"mtp.more.weight": torch.ones(3)}), "mtp.more.weight is not part"),
    ],
)
def test_heads_that_do_not_fit_are_refused(
    headed: Checkpoints, tmp_path: Path, change: Change, why: str
) -> None:
    folder = shutil.copytree(headed("qwen3_next")[0], tmp_path / "model")
    change(tensors := load_file(folder / FILE))
    save_file(tensors, folder / FILE, {"format": "pt"})
    engine_on(folder)
    with pytest.raises(BadCheckpoint, match=why):
        start(folder)


def test_models_without_a_head_are_refused(checkpoint: Callable[[str], tuple[Path, Any]]) -> None:
    for family, why in (
        ("qwen3_next", r"comes without its head for multi-token prediction \(mtp.fc.weight\)"),
        ("deepseek_v3", r"without its head .*model.layers.3.eh_proj.weight"),
        ("llama", "llama models have no head"),
    ):
        with pytest.raises(BadInput, match=why):
            start(checkpoint(family)[0])


def test_heads_are_refused_where_they_do_not_run(headed: Checkpoints, tmp_path: Path) -> None:
    folder = headed("qwen3_next")[0]
    for how, why in (
        ({"tp": 2}, "one process"),
        ({"pp": 2}, "one process"),
        ({"kv_window": 64}, "kv_window"),
        ({"kv_budget": 128}, "kv_budget"),
    ):
        with pytest.raises(BadInput, match=f"draft: mtp .*{why}"):
            EngineConfig(model=str(folder), draft="mtp", **how)  # type: ignore[arg-type]
    reference("GPTNeoX", {"vocab_size": VOCAB}, tmp_path)
    with pytest.raises(BadInput, match="run by transformers"):
        load_model(ModelPlace("tiny", tmp_path), mtp=True)


@pytest.mark.parametrize(
    "packer", [Fp8("block", name="weight_scale_inv"), Compressed(group=-1)], ids=["fp8", "int4"]
)
def test_a_quantized_checkpoint_has_a_quantized_head(
    headed: Checkpoints, tmp_path: Path, packer: Any
) -> None:
    """It is read as the numbers that it stands for."""
    folder = headed("glm4_moe")[0]
    config = json.loads((folder / "config.json").read_text())
    written = write(load_file(folder / FILE), config, tmp_path, packer, also=("eh_proj.weight",))
    assert any(name.startswith("model.layers.3.eh_proj") for name in written.packed)
    made = []
    for each in (written.quantized, written.plain):
        model = load_model(ModelPlace("it", each), mtp=True)
        assert isinstance(model, Decoder)
        head = model.mtp
        assert head is not None
        ids, hidden = torch.arange(3, 23), torch.randn(20, 64, generator=torch.Generator().manual_seed(1))
        step = StepContext(torch.arange(20), model.rope, plain_attend({head.index: head.spec}))
        with torch.inference_mode():
            made.append(head.forward(model.embedded(ids), hidden, step))
    torch.testing.assert_close(*made, atol=1e-5, rtol=1e-5)
