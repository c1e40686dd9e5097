"""Models of every arrangement of blocks on two ranks: their logits, and their tokens in an engine."""

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.api.config import ModelPlace
from engine.models.decoder import Decoder
from engine.models.layers.collective import Collective
from engine.models.registry import load_model
from tests.cases import soak
from tests.distributed.test_collective import team, together
from tests.distributed.threads import ranked
from tests.models.families import EXPERTS, FALCON_H1, GRANITE_HYBRID, LLAMA4, MPT, SCALES, reference
from tests.models.test_shards import CASES, IDS, sum_of
from tests.models.tiny import plain_attend
from tests.runner.letters import VOCAB, byte_tokenizer
from tests.runner.small import alone, ask, drain

WIDE: dict[str, tuple[str, dict[str, Any]]] = {
    "olmo2": ("Olmo2", {}),
    "olmoe": ("Olmoe", EXPERTS),
    "granitemoe": ("GraniteMoe", SCALES | {"num_local_experts": 4}),
    "bloom": ("Bloom", {}),
    "mpt": ("Mpt", MPT | {"attn_config": {"clip_qkv": 0.7}}),
    "llama4": ("Llama4Text", LLAMA4 | {"num_local_experts": 4}),
    "falcon_h1": ("FalconH1", FALCON_H1 | {"mamba_n_groups": 1}),
    "granite4": ("GraniteMoeHybrid", GRANITE_HYBRID | {"mamba_n_groups": 1}),
}
FAMILIES = CASES | WIDE
# One of each arrangement of norms, of joined tensors, and of experts.
ARRANGEMENTS = ("llama", "gemma2", "gemma3_text", "phi3", "granite", "cohere", "mixtral", "qwen2_moe")
ARRANGEMENTS += ("qwen3_moe", "gpt_oss", "deepseek_v2", "deepseek_v3", "glm4_moe", "qwen3_next", "nemotron_h")
ARRANGEMENTS += ("lfm2_moe",)
ARRANGEMENTS += (*WIDE,)
# One each with plain blocks, norms around them, joined tensors, experts, latent and linear attention, and a
# state space with one group for all ranks. The others are also compared for each rank alone
# (tests/models/test_shards.py).
USUAL = ("llama", "deepseek_v3", "qwen3_next")


def load(folder: Path, collective: Collective | None = None, scheme: str = "none") -> Decoder:
    model = load_model(ModelPlace("tiny", folder), collective=collective, quantization=scheme)
    assert isinstance(model, Decoder)
    return model


@torch.inference_mode()
def logits(model: Decoder) -> Tensor:
    attend = plain_attend(model.caches, sinks=model.sinks)
    return model.logits(model.forward(IDS, torch.arange(len(IDS)), attend))


@dataclass
class Table:
    """Where the threads of one process put their tensors."""

    ranks: int
    parts: dict[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.ranks, timeout=30)


class InOrder:
    """The oracle: no memory is shared and nothing is copied, one process adds the terms in rank order."""

    def __init__(self, rank: int, table: Table) -> None:
        self.rank, self.ranks, self._table = rank, table.ranks, table

    def sum(self, term: Tensor) -> Tensor:
        return sum_of(self._all(term))

    def gather(self, part: Tensor) -> Tensor:
        return torch.cat(self._all(part), -1)

    def _all(self, mine: Tensor) -> list[Tensor]:
        self._table.parts[self.rank] = mine.clone()
        self._table.barrier.wait()
        found = [self._table.parts[rank] for rank in range(self.ranks)]
        self._table.barrier.wait()
        return found


def assert_shared(folder: Path, ranks: int, **tolerance: float) -> None:
    """Ranks give, to the bit, what one process adds up, and nearly the logits of the whole model."""
    table = Table(ranks)
    oracles = [InOrder(rank, table) for rank in range(ranks)]
    (expected, *_) = together(oracles, lambda each: logits(load(folder, each)))
    for found in together(team(ranks), lambda each: logits(load(folder, each))):
        assert torch.equal(found, expected)
    torch.testing.assert_close(expected, logits(load(folder)), **({"atol": 1e-4, "rtol": 1e-4} | tolerance))


@pytest.mark.parametrize("family", [each if each in USUAL else soak(each)[0] for each in ARRANGEMENTS])
def test_two_ranks_are_one_process_to_the_bit_and_give_the_tokens_of_one_rank(
    family: str, tmp_path: Path
) -> None:
    name, changes = FAMILIES[family]
    reference(name, changes | {"vocab_size": VOCAB}, tmp_path)
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    assert_shared(tmp_path, 2)
    prompts = [[1, 5, 9, 30], [7, *range(40, 71)]]
    with ranked(tmp_path) as engine:
        outputs = [ask(engine, prompt)[1] for prompt in prompts]
        drain(engine)
        assert [each.error for each in outputs] == ["", ""]
        assert [each.reply for each in outputs] == [alone(tmp_path, prompt).reply for prompt in prompts]


@pytest.mark.parametrize("family", ["llama", *soak("cohere", "phi3", "olmo2")])
def test_more_ranks_than_kv_heads_share_them(family: str, tmp_path: Path) -> None:
    """Two ranks cache the same head, and a norm over all heads counts it once."""
    name, changes = FAMILIES[family]
    reference(name, changes, tmp_path)
    assert_shared(tmp_path, 4)
    (spec, *_) = together(team(4), lambda each: load(tmp_path, each))[3].caches
    assert (spec.heads, spec.kv_heads) == (1, 1)
