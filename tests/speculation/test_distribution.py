"""Drafting keeps the target's distribution exactly. Many seeds, each with a reply of two tokens."""

import numpy as np
import torch

from engine.api.params import SamplingParams
from engine.sampling.rows import SamplingRows
from engine.sampling.sampler import sample
from engine.speculation.verify import run_of

ROWS, VOCAB = 8192, 6
FAR = 25.7  # of chi-square with 8 degrees of freedom: one time in 800


def sample_rows(rows: SamplingRows, logits: torch.Tensor, index: int) -> np.ndarray:
    slots = list(range(ROWS))
    return sample(logits, rows.view(slots, [index] * ROWS)).ids.numpy()


def test_tokens_after_drafts_have_the_targets_frequencies() -> None:
    generator = torch.Generator().manual_seed(0)
    target, draft = torch.randn(VOCAB, generator=generator), torch.randn(VOCAB, generator=generator)
    after = torch.randn(VOCAB, VOCAB, generator=generator)  # the target's logits after each first token
    rows = SamplingRows(ROWS, VOCAB, torch.device("cpu"))
    for slot in range(ROWS):
        rows.set(slot, SamplingParams(), seed=slot, end_ids=(), tokens=(), prompt_len=0)

    guessed = sample_rows(rows, draft.expand(ROWS, -1), 0)  # with the random number of the first token
    first = sample_rows(rows, target.expand(ROWS, -1), 0)
    second = sample_rows(rows, after[guessed], 1)  # the verification scores the token after the guess
    runs = [
        run_of([int(a), int(b)], [int(guess)]) for a, b, guess in zip(first, second, guessed, strict=True)
    ]

    assert agrees([run[0] for run in runs], target.softmax(-1).numpy())
    for token in range(VOCAB):
        accepted = [run[1] for run in runs if len(run) == 2 and run[0] == token]
        if len(accepted) > 300:
            assert agrees(accepted, after[token].softmax(-1).numpy()), f"after {token}"
    share = sum(len(run) == 2 for run in runs) / ROWS
    p, q = target.softmax(-1), draft.softmax(-1)
    overlap = sum(
        max(0.0, min(a, b) - max(a - x, b - y))
        for a, b, x, y in zip(p.cumsum(0).tolist(), q.cumsum(0).tolist(), p.tolist(), q.tolist(), strict=True)
    )
    assert abs(share - overlap) < 0.02, "the share of accepted drafts"


def agrees(tokens: list[int], chances: np.ndarray) -> bool:
    """Return whether the frequencies are plausible by chi-square."""
    found, expected = np.bincount(tokens, minlength=VOCAB), chances * len(tokens)
    return float(((found - expected) ** 2 / expected).sum()) < FAR
