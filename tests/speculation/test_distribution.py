"""What drafts leave of the target's distribution: all of it. Many seeds, each a reply of two tokens."""

import numpy as np
import torch

from engine.api.params import SamplingParams
from engine.sampling.rows import SamplingRows
from engine.sampling.sampler import sample
from engine.speculation.verify import run_of

ROWS, VOCAB = 8192, 6
FAR = 25.7  # of chi-square with 8 degrees of freedom: one time in 800


def drawn(rows: SamplingRows, logits: torch.Tensor, index: int) -> np.ndarray:
    slots = list(range(ROWS))
    return sample(logits, rows.view(slots, [index] * ROWS)).ids.numpy()


def test_tokens_that_pass_through_drafts_have_the_targets_frequencies() -> None:
    generator = torch.Generator().manual_seed(0)
    target, draft = torch.randn(VOCAB, generator=generator), torch.randn(VOCAB, generator=generator)
    after = torch.randn(VOCAB, VOCAB, generator=generator)  # the target's logits after each first token
    rows = SamplingRows(ROWS, VOCAB, torch.device("cpu"))
    for slot in range(ROWS):
        rows.set(slot, SamplingParams(), seed=slot, end_ids=(), tokens=(), prompt_len=0)

    guessed = drawn(rows, draft.expand(ROWS, -1), 0)  # with the number that the target's first token has
    first = drawn(rows, target.expand(ROWS, -1), 0)
    second = drawn(rows, after[guessed], 1)  # the verification looks at what follows the guess
    runs = [
        run_of([int(a), int(b)], [int(guess)]) for a, b, guess in zip(first, second, guessed, strict=True)
    ]

    assert agrees([run[0] for run in runs], target.softmax(-1).numpy())
    for token in range(VOCAB):
        stood = [run[1] for run in runs if len(run) == 2 and run[0] == token]
        if len(stood) > 300:
            assert agrees(stood, after[token].softmax(-1).numpy()), f"after {token}"
    share = sum(len(run) == 2 for run in runs) / ROWS
    p, q = target.softmax(-1), draft.softmax(-1)
    apart = sum(
        max(0.0, min(a, b) - max(a - x, b - y))
        for a, b, x, y in zip(p.cumsum(0).tolist(), q.cumsum(0).tolist(), p.tolist(), q.tolist(), strict=True)
    )
    assert abs(share - apart) < 0.02, "one number for both lies in the same token's part so often"


def agrees(tokens: list[int], chances: np.ndarray) -> bool:
    """Whether so far a frequency is no surprise, by chi-square."""
    found, expected = np.bincount(tokens, minlength=VOCAB), chances * len(tokens)
    return float(((found - expected) ** 2 / expected).sum()) < FAR
