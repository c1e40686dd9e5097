"""The same on a GPU: masks beside CUDA graphs, while the next step is in flight."""

import json
import re
from dataclasses import replace
from pathlib import Path

import jsonschema_rs
import pytest
import torch

from engine.api.request import Finish
from engine.sampling.mask import mask_logits
from tests.grammar.test_replies import JSON, LETTERS, OTHER, PLAIN, PROMPT, SCHEMA, WARM
from tests.runner.small import ask, drain, engine_on

pytestmark = pytest.mark.cuda


def test_replies_match_their_grammars(llama: Path) -> None:
    for dtype in ("float32", "bfloat16"):
        engine = engine_on(llama, device="cuda", dtype=dtype, depth=1, blocks=256, max_running=16)
        asked = [ask(engine, PROMPT, replace(WARM, grammar=JSON, seed=seed))[1] for seed in range(6)]
        letters = ask(engine, OTHER, replace(WARM, grammar=LETTERS, logprobs=3))[1]
        plain = ask(engine, OTHER, PLAIN)[1]
        drain(engine)
        whole = [json.loads(each.text) for each in asked if each.finish is Finish.STOP]
        assert len(whole) >= 3, "too few replies ended before their limit"
        assert all(jsonschema_rs.is_valid(SCHEMA, each) for each in whole), asked
        assert re.fullmatch("[ab]+", letters.text)
        assert len(plain.tokens) == PLAIN.max_tokens


def test_masks_are_the_same_as_on_a_cpu() -> None:
    vocab = 1003
    logits, bits = (
        torch.randn(5, vocab),
        torch.randint(0, 256, (2, -(-vocab // 8)), dtype=torch.uint8).numpy(),
    )
    there = logits.cuda()
    mask_logits(logits, [1, 4], bits)
    mask_logits(there, [1, 4], bits)
    assert torch.equal(logits, there.cpu()) and logits.isinf().any() and not logits[[0, 2, 3]].isinf().any()
