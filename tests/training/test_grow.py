"""A larger model that starts from a smaller one."""

from dataclasses import replace

import pytest
import torch

from training.model import Decoder, dense_attend, grown
from training.recipe import FULL, LARGER, TINY, Shape

WIDER = Shape(layers=4, hidden=48, heads=6, kv_heads=1, head_dim=16, inner=80, exits=(1,), context=512)


def hidden(model: Decoder, layers: int) -> torch.Tensor:
    tokens = torch.randint(0, 64, (2, 20), generator=torch.Generator().manual_seed(1))
    causal = torch.ones(20, 20, dtype=torch.bool).tril()[None, None]
    return model.logits(model.hidden(tokens, torch.arange(20)[None], dense_attend(causal))[layers])


def test_a_grown_model_computes_the_same_and_learns_with_all_its_weights() -> None:
    torch.manual_seed(2)
    small, large = Decoder(TINY.main, 64), Decoder(WIDER, 64)
    for p in small.parameters():
        p.data += 0.05 * torch.randn_like(p)
    small.model.embed_tokens.weight.data *= 20  # so that the norms' epsilon does not count
    large.load_state_dict(grown(large, small.state_dict()))
    assert torch.allclose(hidden(large, 4), hidden(small, 2), atol=1e-3)
    assert torch.allclose(hidden(large, 1), hidden(small, 1), atol=1e-3)
    hidden(large, 4).square().mean().backward()
    still = [name for name, p in large.named_parameters() if p.grad is None or not p.grad.any()]
    assert [name for name in still if "layers.2" not in name and "layers.3" not in name] == []
    assert [name for name in still if "o_proj" in name or "down_proj" in name] == []


def test_weights_of_the_same_shape_are_unchanged() -> None:
    model = Decoder(TINY.main, 64)
    state = model.state_dict()
    assert grown(model, state) is state


@pytest.mark.parametrize("size", LARGER)
def test_a_larger_shape_has_the_size_of_its_name(size: int) -> None:
    with torch.device("meta"):
        parts = [Decoder(shape, FULL.vocab) for shape in (LARGER[size], FULL.draft)]
    tokenizer = 80_000
    found = sum(2 * p.numel() for model in parts for p in model.parameters()) + tokenizer
    assert found == pytest.approx(size * 1e6, rel=0.02)
    assert replace(LARGER[size], layers=8, hidden=256, heads=4, inner=512) == FULL.main
