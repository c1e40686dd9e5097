"""The perplexity of the built-in model on stories like its training data, with names it has not seen."""

from functools import cache

import torch

from engine.models.base import LanguageModel
from engine.models.find import find_model
from engine.quality.measure import own_text
from engine.text.tokenizer import Tokenizer
from tests.models.tiny import plain_attend

STRETCH = 480  # tokens, always read from position 0


@cache
def stories() -> tuple[tuple[int, ...], ...]:
    tokenizer = Tokenizer.load(find_model("pocket").folder)
    ids = tuple(tokenizer.encode(own_text("pocket")))
    return tuple(ids[at : at + STRETCH] for at in range(0, len(ids) - 1, STRETCH))


@torch.inference_mode()
def perplexity(model: LanguageModel, whole: bool = False) -> float:
    """Return the perplexity of the first stretch; the whole text takes four times as long."""
    losses = []
    for stretch in stories() if whole else stories()[:1]:
        ids = torch.tensor(stretch)
        hidden = model.forward(ids, torch.arange(len(ids)), plain_attend(model.config.layers))
        losses.append(-model.logits(hidden[:-1]).log_softmax(-1).gather(1, ids[1:, None])[:, 0])
    return float(torch.cat(losses).mean().exp())
