"""A checkpoint sharded by its declared cuts: partial sums, added in rank order, give its logits."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from engine.api.config import DecoderConfig, ModelPlace
from engine.api.errors import BadInput
from engine.models.config_json import read_config
from engine.models.decoder import Decoder, Linear, block, build_of
from engine.models.families import FAMILIES
from engine.models.layers.block import Block
from engine.models.layers.build import Build
from engine.models.layers.part import Part, SourceTensor
from engine.models.layers.sharding import ROWS, by_head
from engine.models.layers.step import StepContext
from engine.models.registry import load_model
from engine.models.source import finalize
from engine.quant.registry import named as scheme_named
from tests.cases import soak
from tests.models.families import (
    DEEPSEEK,
    EXPERTS,
    FALCON_H1,
    GPT_OSS,
    GRANITE_HYBRID,
    GROUPED,
    GROWING,
    LATENT,
    LFM2,
    LFM2_EXPERTS,
    LINEAR,
    LONE,
    MAMBA,
    MAMBA2,
    NEMOTRON,
    SCALES,
    SHAPE,
    reference,
)
from tests.models.tiny import plain_attend, write_config

FOUR = {"mamba_n_groups": 4}
SHARED_HEADS = {"linear_num_key_heads": 4, "linear_num_value_heads": 8}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("Mistral", {"sliding_window": 5}),
    "ministral": ("Ministral", {"sliding_window": 5, "head_dim": 16}),
    "ministral3": ("Ministral3", GROWING | {"pad_token_id": 0}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 24, "attention_bias": True}),
    "smollm3": ("SmolLM3", {"no_rope_layer_interval": 2, "pad_token_id": 0, "mlp_bias": True}),
    "gemma": ("Gemma", {"head_dim": 24}),
    "gemma2": ("Gemma2", {"head_dim": 24, "sliding_window": 5}),
    "gemma3_text": ("Gemma3Text", {"head_dim": 24, "sliding_window": 5}),
    "phi3": ("Phi3", {"pad_token_id": 0}),
    "granite": ("Granite", SCALES),
    "glm": ("Glm", {"pad_token_id": 0, "head_dim": 24}),
    "glm4": ("Glm4", {"pad_token_id": 0, "head_dim": 24}),
    "cohere": ("Cohere", {"use_qk_norm": True}),
    "cohere2": ("Cohere2", {"head_dim": 16, "sliding_window": 5}),
    "starcoder2": ("Starcoder2", {}),
    "mixtral": ("Mixtral", EXPERTS | {"head_dim": 16}),
    "qwen2_moe": ("Qwen2Moe", EXPERTS),
    "qwen3_moe": ("Qwen3Moe", EXPERTS | {"mlp_only_layers": [1], "head_dim": 16}),
    "qwen3_next": ("Qwen3Next", LINEAR | EXPERTS | SHARED_HEADS),
    "qwen3_5_text": ("Qwen3_5Text", LINEAR | SHARED_HEADS),
    "qwen3_5_moe_text": ("Qwen3_5MoeText", LINEAR | EXPERTS | SHARED_HEADS),
    "granitemoehybrid": ("GraniteMoeHybrid", GRANITE_HYBRID | FOUR | {"num_local_experts": 0}),
    "bamba": ("Bamba", MAMBA | FOUR | {"attn_layer_indices": [1], "mamba_proj_bias": True}),
    "nemotron_h": ("NemotronH", NEMOTRON | {"layers_block_type": LONE, "n_groups": 4, "use_bias": True}),
    "mamba2": ("Mamba2", MAMBA2 | {"n_groups": 4, "use_bias": True}),
    "falcon_h1": ("FalconH1", FALCON_H1 | FOUR),
    "gpt_oss": ("GptOss", GPT_OSS),
    "lfm2": ("Lfm2", LFM2 | {"conv_bias": True, "tie_embedding": False}),
    "lfm2_moe": ("Lfm2Moe", LFM2_EXPERTS),
    "deepseek_v2": ("DeepseekV2", DEEPSEEK),
    "deepseek_v3": ("DeepseekV3", DEEPSEEK | {"q_lora_rank": None}),
    "glm4_moe_lite": ("Glm4MoeLite", LATENT | GROUPED),
    "youtu": ("Youtu", LATENT),
    "minicpm3": ("MiniCPM3", LATENT),
    "dots1": ("Dots1", GROUPED),
    "glm4_moe": ("Glm4Moe", GROUPED | {"head_dim": 24, "use_qk_norm": True}),
}
SEVERAL = {"llama4", "gemma3", "mistral3", "qwen3_5", "qwen3_5_moe"}  # the parts of others, under other names
# A norm inside a part joins the ranks, or a part must know its rank: tests/distributed.
JOINED = {"olmo2", "olmo3", "olmoe", "bloom", "mpt"}
STACKED = {
    "llama4_text",
    "granitemoe",
    "granitemoeshared",
}  # all experts in one tensor, which the loader cuts: the same
IDS = torch.randint(3, 96, (40,), generator=torch.Generator().manual_seed(1))


class Rank:
    """One rank of a sharded model: its blocks, with its share of every tensor."""

    def __init__(self, whole: Decoder, tensors: dict[str, Tensor], rank: int, ranks: int) -> None:
        self.cuts, self.names = whole.shards(ranks), whole.family.names
        self.mine = {name: cut.share(tensors[name], rank, ranks) for name, cut in self.cuts.items()}
        self.blocks: list[Block] = []
        for index in range(len(whole.config.layers)):
            made = block(whole.config, index, torch.float32, ranks)
            for name, slot in made.slots():
                slot.view.copy_(self.mine[name])
            self.blocks.append(made)
        step = -(-whole.config.vocab // ranks)
        self.first = rank * step

    def embedded(self, ids: Tensor) -> Tensor:
        table = self.mine[f"{self.names['embed']}.weight"]
        here = (ids >= self.first) & (ids < self.first + len(table))
        return F.embedding((ids - self.first).clamp(0, len(table) - 1), table) * here[:, None]

    def logits(self, hidden: Tensor, tied: bool) -> Tensor:
        return F.linear(hidden, self.mine[f"{self.names['embed' if tied else 'head']}.weight"])


def norms_of(model: Decoder) -> Iterator[tuple[str, nn.Module]]:
    """The loaded norms outside the parts, by their names in the model."""
    for index, layer in enumerate(model.blocks):
        for name, child in layer.named_children():
            if not isinstance(child, Part):
                yield f"layers.{index}.{name}", child


def sum_of(terms: list[Tensor]) -> Tensor:
    """Add the terms in rank order."""
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


@torch.inference_mode()
def shared_logits(whole: Decoder, tensors: dict[str, Tensor], ranks: int) -> Tensor:
    team = [Rank(whole, tensors, rank, ranks) for rank in range(ranks)]
    x = sum_of([each.embedded(IDS) for each in team])
    x = whole.scaled(x)
    steps = []
    for each in team:
        mixers = {one.index: one.mixer for one in each.blocks if one.mixer is not None}
        sinks = {index: one.sinks for index, one in mixers.items() if one.sinks is not None}
        caches = {index: one.cache for index, one in mixers.items() if one.cache is not None}
        attend = plain_attend(caches, sinks=sinks)
        steps.append(StepContext(torch.arange(len(IDS)), whole.rope, attend, local_rope=whole.local_rope))

    for index, layer in enumerate(whole.blocks):

        def term(part: Part, read: Tensor, index: int = index, layer: Block = layer) -> Tensor:
            at = layer.parts.index(part)
            shares = [each.blocks[index].parts[at] for each in team]
            return sum_of([mine.forward(read, step) for mine, step in zip(shares, steps, strict=True)])

        layer.add_terms(x, term)
    hidden = whole.norm(x)
    return whole.capped(torch.cat([each.logits(hidden, whole.tied) for each in team], 1))


@pytest.mark.parametrize("ranks", [*soak(2), 4])
@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in JOINED | SEVERAL | STACKED])
def test_all_ranks_together_give_the_logits_of_the_model(family: str, ranks: int, tmp_path: Path) -> None:
    """With four ranks and two key/value heads, two ranks share each head."""
    reference(*CASES[family], tmp_path)
    whole = load_model(ModelPlace("tiny", tmp_path))
    assert isinstance(whole, Decoder)
    plain = Decoder(read_config(tmp_path), torch.float32)  # with the shapes before any scheme
    tensors = load_file(tmp_path / "model.safetensors")
    assert plain.shards(ranks).keys() == tensors.keys() - ({"lm_head.weight"} if whole.tied else set())
    with torch.inference_mode():
        expected = whole.logits(
            whole.forward(IDS, torch.arange(len(IDS)), plain_attend(whole.config.layers, sinks=whole.sinks))
        )
    for name, norm in (("norm", whole.norm), *norms_of(whole)):
        plain.set_submodule(name, norm)
    torch.testing.assert_close(shared_logits(plain, tensors, ranks), expected, atol=1e-4, rtol=1e-4)


def test_the_shares_together_hold_every_number(tmp_path: Path) -> None:
    reference(*CASES["qwen3"], tmp_path)
    whole = Decoder(read_config(tmp_path), torch.float32)
    tensors = load_file(tmp_path / "model.safetensors")
    for name, cut in whole.shards(2).items():
        shares = [cut.share(tensors[name], rank, 2) for rank in range(2)]
        if cut.kind in ("rows", "heads", "vocabulary"):
            assert torch.equal(torch.cat(shares), tensors[name]), name
        elif cut.kind == "columns":
            assert torch.equal(torch.cat(shares, 1), tensors[name]), name
        else:
            assert torch.equal(shares[0], tensors[name]), name
    kinds = {name.split(".", 3)[-1]: cut.kind for name, cut in whole.shards(2).items() if ".0." in name}
    assert kinds["self_attn.q_proj.weight"] == kinds["self_attn.k_proj.bias"] == "heads"
    assert (kinds["self_attn.o_proj.weight"], kinds["self_attn.o_proj.bias"]) == ("columns", "once")
    assert (kinds["mlp.up_proj.weight"], kinds["mlp.down_proj.weight"]) == ("rows", "columns")


def test_uneven_shares_are_refused(tmp_path: Path) -> None:
    reference("Llama", {}, tmp_path)
    whole = Decoder(read_config(tmp_path), torch.float32)
    with pytest.raises(BadInput, match=r"self_attn\.q_proj\.weight: 4 heads cannot be split over 3 ranks"):
        whole.shards(3)
    odd = replace(whole.config, mlp=SHAPE["intermediate_size"] + 1)
    with pytest.raises(BadInput, match=r"gate_proj\.weight: 81 rows cannot be split into 2 equal shares"):
        Decoder(odd, torch.float32).shards(2)
    with pytest.raises(BadInput, match="81 rows of the MLP cannot be split into 2 equal shares"):
        block(odd, 0, torch.float32, 2)
    with pytest.raises(BadInput, match=r"tp: 4 query heads and 2 KV heads .* over 3 ranks, only 1, 2 or 4$"):
        block(whole.config, 0, torch.float32, 3)


class Experts(Part):
    """A part with several products of the same kind, each under its own name."""

    def __init__(self, config: DecoderConfig, index: int, build: Build) -> None:
        super().__init__(config, index, build)
        self.width = build.share(config.mlp, "rows of an expert")
        self.ups = nn.ModuleList(build.linear(config.hidden, self.width) for _ in range(3))

    def pieces(self) -> dict[str, tuple[SourceTensor, ...]]:
        return {
            f"ups.{at}": (SourceTensor(f"mlp.experts.{at}.up_proj", self.width, ROWS),) for at in range(3)
        }


def test_a_part_may_hold_several_products_of_a_kind(tmp_path: Path) -> None:
    config = read_config(write_config(tmp_path))
    part = Experts(config, 0, build_of(config, torch.float32))
    names = [f"mlp.experts.{at}.up_proj.weight" for at in range(3)]
    slots = dict(part.slots())
    assert list(slots) == names and part.shards(2) == dict.fromkeys(names, ROWS)
    slots[names[1]].view.fill_(7)
    assert torch.equal(part.ups[1].weight, torch.full((48, 32), 7.0))  # type: ignore[arg-type]
    finalize(part, scheme_named("int8"))
    assert not any(isinstance(each, Linear) for each in part.modules())


def test_more_ranks_than_heads_share_heads() -> None:
    tensor = torch.arange(6).view(6, 1)
    shares = [by_head(3).share(tensor, rank, 6).flatten().tolist() for rank in range(6)]
    assert shares == [[0, 1], [0, 1], [2, 3], [2, 3], [4, 5], [4, 5]]
