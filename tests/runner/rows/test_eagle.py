"""EAGLE-3 heads from a folder guess what a plain model of them guesses, and change no reply."""

import json
from collections.abc import Callable
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

from engine.api.errors import BadCheckpoint, BadInput, UnsupportedModel
from engine.execution.draft.eagle import read_eagle
from engine.models.find import find_model
from engine.models.registry import load_model
from tests.cases import soak
from tests.examples import TIMES
from tests.models.families import reference
from tests.runner.letters import VOCAB, byte_tokenizer
from tests.runner.replies.test_company import A, B, Workload, assert_nothing_changes, engine_for, workloads
from tests.runner.rows.drafted import REPLAYED, noted_drafts, on, replaying
from tests.runner.rows.test_speculation import LETTERS, always_draft, speculative
from tests.runner.small import GREEDY, alone, ask, drain, engine_on

FILE, PROMPT, KNOWN = "model.safetensors", [1, A, B, *range(3, 40)], 100
QUERIES, KEYS, DIM, READ = 4, 2, 20, (2, 3, 4)  # READ: the layers of the model, of seven


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm = (
            nn.RMSNorm(width, eps=1e-5) for _ in range(3)
        )
        self.self_attn, self.mlp = nn.Module(), nn.Module()
        for name, inputs, outputs in (
            ("q_proj", 2 * width, QUERIES * DIM),
            ("k_proj", 2 * width, KEYS * DIM),
            ("v_proj", 2 * width, KEYS * DIM),
            ("o_proj", QUERIES * DIM, width),
        ):
            self.self_attn.add_module(name, nn.Linear(inputs, outputs, bias=False))
        for name, inputs, outputs in (
            ("gate_proj", width, 48),
            ("up_proj", width, 48),
            ("down_proj", 48, width),
        ):
            self.mlp.add_module(name, nn.Linear(inputs, outputs, bias=False))

    def attention(self, x: Tensor) -> Tensor:
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

        each: Any = self.self_attn
        config = LlamaConfig(head_dim=DIM, rope_parameters={"rope_type": "default", "rope_theta": 500.0})
        angles = LlamaRotaryEmbedding(config)(x, torch.arange(len(x))[None])
        q, k, v = (
            made(x).view(1, len(x), -1, DIM).transpose(1, 2)
            for made in (each.q_proj, each.k_proj, each.v_proj)
        )
        q, k = apply_rotary_pos_emb(q, k, *angles)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        out: Tensor = each.o_proj(mixed[0].transpose(0, 1).flatten(1))
        return out

    def forward(self, embedded: Tensor, fused: Tensor, normed_residual: bool) -> Tensor:
        mlp: Any = self.mlp
        normed = self.hidden_norm(fused)
        pair = torch.cat((self.input_layernorm(embedded), normed), 1)
        x = (normed if normed_residual else fused) + self.attention(pair)
        read = self.post_attention_layernorm(x)
        out: Tensor = x + mlp.down_proj(nn.functional.silu(mlp.gate_proj(read)) * mlp.up_proj(read))
        return out


class Head(nn.Module):
    """The head as its paper describes it. `embed`: whether it has its own embedding."""

    def __init__(self, width: int, embed: bool) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.midlayer, self.norm = Layer(width), nn.RMSNorm(width, eps=1e-5)
        self.fc, self.lm_head = (
            nn.Linear(*each, bias=False) for each in ((3 * width, width), (width, KNOWN))
        )
        if embed:
            self.embed_tokens = nn.Embedding(VOCAB, width)
        for tensor in self.parameters():
            tensor.requires_grad_(False)
            tensor.uniform_(0.5, 1.5) if tensor.dim() == 1 else tensor.normal_(0, 0.2)
        others = [each for each in torch.randperm(VOCAB).tolist() if each not in LETTERS]
        self.known = torch.tensor(sorted([*LETTERS, *others[: KNOWN - len(LETTERS)]]))

    def drafts(
        self, base: Any, ids: list[int], before: Tensor, count: int, bias: Tensor, *, normed: bool
    ) -> list[int]:
        ids, found = list(ids), []
        embed = self.embed_tokens if hasattr(self, "embed_tokens") else base.model.embed_tokens
        for _ in range(count):
            state = self.midlayer(embed(torch.tensor(ids)), before, normed)[-1:]
            logits = torch.full((VOCAB,), -1e9)
            logits[self.known] = self.lm_head(self.norm(state))[0]
            found.append(int((logits + bias).argmax()))
            ids.append(found[-1])
            before = torch.cat((before, state))
        return found


GOOD: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "num_hidden_layers": 1,
    "num_attention_heads": QUERIES,
    "num_key_value_heads": KEYS,
    "head_dim": DIM,
    "intermediate_size": 48,
    "vocab_size": VOCAB,
    "draft_vocab_size": KNOWN,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500.0,
    "max_position_embeddings": 64,
}


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A model of seven layers."""
    folder = tmp_path_factory.mktemp("seven")
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder, reference("Llama", {"vocab_size": VOCAB, "num_hidden_layers": 7}, folder)


Heads = Callable[[bool], tuple[Path, Head]]


@pytest.fixture(scope="session")
def heads(target: tuple[Path, Any], tmp_path_factory: pytest.TempPathFactory) -> Heads:
    """A folder with a head, and its reference. With its own embedding, it norms what it adds to, too."""

    @cache
    def made(embed: bool) -> tuple[Path, Head]:
        folder, width = tmp_path_factory.mktemp("eagle"), target[1].config.hidden_size
        head = Head(width, embed)
        known = torch.zeros(VOCAB, dtype=torch.bool)
        known[head.known] = True
        tensors = head.state_dict() | {"d2t": head.known - torch.arange(KNOWN), "t2d": known}
        save_file(tensors, folder / FILE)
        more = {"norm_before_residual": True} if embed else {}
        (folder / "config.json").write_text(json.dumps(GOOD | {"hidden_size": width} | more))
        return folder, head

    return made


@pytest.mark.parametrize(("embed", "step_tokens"), [(True, 7), *soak((False, None))])
@pytest.mark.parametrize("way", [*soak(""), *REPLAYED])
def test_drafts_are_those_of_the_reference(
    target: tuple[Path, Any],
    heads: Heads,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    embed: bool,
    step_tokens: int | None,
) -> None:
    """Also after a prefix hit, which lacks a state, and beyond the positions that its config.json names."""
    (model, base), (folder, head) = target, heads(embed)
    seen = noted_drafts(monkeypatch)
    config = on(way) | {"draft": str(folder), "max_step_tokens": step_tokens}
    engine = replaying(way, always_draft(engine_on(model, **config)))
    params = replace(GREEDY, max_tokens=40, logit_bias=LETTERS, logprobs=1)
    expected = alone(model, PROMPT, params)
    bias = torch.zeros(VOCAB)
    bias[[*LETTERS]] = torch.tensor([*LETTERS.values()])
    for unknown in (None, 32):  # the second time, two blocks are in the prefix cache
        seen.clear()
        _, output = ask(engine, PROMPT, params.changed(speculate="draft", draft_tokens=4))
        drain(engine)
        assert output.reply == expected.reply
        if (
            step_tokens is None and way != "cuda"
        ):  # a prompt in pieces differs in the last bits, with drafts or without
            found, wanted = ([each.logprob for each in of.logprobs] for of in (output, expected))
            assert found == wanted
        with torch.no_grad():
            read = base.model(torch.tensor([PROMPT + output.tokens]), output_hidden_states=True).hidden_states
            states = head.fc(torch.cat([read[layer][0] for layer in READ], 1))
        before = torch.cat((torch.zeros(1, states.shape[1]), states))
        if unknown is not None:
            before[unknown] = 0
        assert len(seen) >= 8 and max(at for at, _ in seen) > 64
        for at, drafts in seen:
            text = (PROMPT + output.tokens)[: at + 1]
            guesses = head.drafts(base, text, before[: at + 1], len(drafts), bias, normed=embed)
            assert guesses == list(drafts), at
    total = engine.scheduler.speculator.total()
    assert 0 < total.accepted < total.drafted


@settings(max_examples=2 * TIMES, phases=[Phase.generate])
@given(work=workloads, others=st.lists(st.sampled_from(("", "draft", "ngram")), min_size=5, max_size=5))
@pytest.mark.parametrize("way", ["", *REPLAYED])
def test_heads_do_not_change_a_reply(
    target: tuple[Path, Any], heads: Heads, way: str, work: Workload, others: list[str]
) -> None:
    draft = str(heads(False)[0])
    engine = replaying(way, always_draft(engine_for(target[0], work, draft=draft, **on(way))))
    assert_nothing_changes(engine, target[0], speculative(work, ["draft"] * 5, others))


Change = Callable[[dict[str, Tensor]], object]


@pytest.mark.parametrize(
    ("config", "change", "why"),
    [
        ({}, lambda each: each.pop("midlayer.hidden_norm.weight"), "midlayer.hidden_norm.weight is missing"),
        ({}, lambda each: each.update(more=torch.ones(1)), "more is unknown"),
        ({}, lambda each: each.update({"fc.weight": torch.ones(3, 3)}), "fc.weight is .3, 3."),
        ({}, lambda each: each["norm.weight"].fill_(float("nan")), "norm.weight .* not finite"),
        ({}, lambda each: each.pop("d2t"), "d2t is missing"),
        ({}, lambda each: each.update(d2t=torch.ones(KNOWN)), "d2t must hold 100 whole numbers"),
        ({}, lambda each: each["d2t"].fill_(VOCAB), "d2t names tokens that the model does not have"),
        ({"draft_vocab_size": VOCAB + 1}, len, "draft_vocab_size"),
        ({"vocab_size": VOCAB + 1}, len, "was made for a model of width"),
        ({"num_hidden_layers": 2}, len, "of one layer are supported only"),
        ({"model_type": "qwen3"}, len, "layers of the Llama family only"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}}, len, "the usual three layers"),
        ({"quantization_config": {"quant_method": "fp8"}}, len, "quantization_config"),
    ],
)
def test_heads_that_do_not_fit_are_refused(
    target: tuple[Path, Any], heads: Heads, tmp_path: Path, config: dict[str, Any], change: Change, why: str
) -> None:
    values = json.loads((heads(False)[0] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(values | config))
    change(tensors := load_file(heads(False)[0] / FILE))
    save_file(tensors, tmp_path / FILE)
    with pytest.raises((BadCheckpoint, UnsupportedModel), match=why):
        engine_on(target[0], draft=str(tmp_path))


def test_heads_are_refused_where_they_do_not_run(target: tuple[Path, Any], heads: Heads, llama: Path) -> None:
    cpu, folder = torch.device("cpu"), heads(False)[0]
    model = load_model(find_model(str(target[0])), device=cpu, dtype="float32", max_context=None)
    with pytest.raises(BadInput, match="one process"):
        read_eagle(folder, model, cpu, 2)
    with pytest.raises(BadInput, match="runs natively"):
        read_eagle(folder, object(), cpu)
    with pytest.raises(BadInput, match="kv_window"):
        engine_on(target[0], draft=str(folder), kv_window=64)
    with pytest.raises(BadCheckpoint, match="a model of 7 layers or more"):
        engine_on(llama, draft=str(folder))
