"""How well the built-in model expects dialogues like those that it was trained on."""

import tomllib
from functools import cache
from pathlib import Path

import torch

from engine.models.base import LanguageModel
from engine.models.find import find_model
from engine.text.tokenizer import Tokenizer
from tests.models.tiny import plain_attend

FACTS = Path(__file__).parents[2] / "training" / "text" / "facts"


@cache
def dialogues() -> tuple[tuple[list[int], int], ...]:
    """Questions in words that it was not trained with, and answers, whose first tokens it is not sure of."""
    tokenizer, found = Tokenizer.load(find_model("pocket").folder), []
    for file in sorted(FACTS.glob("*.toml")):
        for fact in tomllib.loads(file.read_text(encoding="utf-8"))["fact"]:
            for subject in fact.get("what", ())[:1]:
                asked = f"<|im_start|>user\nWell then, {subject}. Say a word on it!<|im_end|>"
                start = tokenizer.encode(f"<|start|>{asked}<|im_start|>assistant\n")
                found.append((start + tokenizer.encode(fact["say"][0] + "<|im_end|>"), len(start)))
    return tuple(found[::6])


@torch.inference_mode()
def perplexity(model: LanguageModel) -> float:
    """Of the answers, each behind its question."""
    losses = []
    for row, start in dialogues():
        ids = torch.tensor(row)
        hidden = model.forward(ids, torch.arange(len(ids)), plain_attend(model.config.layers))
        expected = model.logits(hidden[start - 1 : -1]).log_softmax(-1)
        losses.append(-expected.gather(1, ids[start:, None])[:, 0])
    return float(torch.cat(losses).mean().exp())
