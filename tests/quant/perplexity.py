"""The perplexity of the built-in model on stories like its training data, with names it has not seen.

`python -m tests.quant.perplexity` prints how each scheme changes it.
"""

from functools import cache
from unittest.mock import patch

import torch

from engine.models.base import LanguageModel
from engine.models.find import find_model
from engine.models.registry import load_model
from engine.quality.measure import own_text
from engine.quant import registry
from engine.quant.fp8 import Fp8
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


def main() -> None:
    """Print a line for each scheme, once it is measured."""
    plain = perplexity(load_model(find_model("pocket"), quantization="none"), whole=True)
    print(f"{'none':8} {plain:.3f}")
    with patch.object(Fp8, "why_not", lambda *where: None):  # on a CPU it is just too slow to be offered
        for name in registry.names():
            if name != "none" and registry.why_not(name, torch.device("cpu"), torch.bfloat16) is None:
                value = perplexity(load_model(find_model("pocket"), quantization=name), whole=True)
                print(f"{name:8} {value:.3f} {value / plain - 1:+.2%}", flush=True)


if __name__ == "__main__":
    main()
