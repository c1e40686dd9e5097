"""Counts the tokens each slot has seen, on the logits' device, and applies penalties for them."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_MOST = torch.iinfo(torch.int16).max  # counts saturate here


class SeenTokens:
    """[slots, vocab] counts; only the rows of slots with penalties are valid."""

    def __init__(self, max_rows: int, vocab: int, device: torch.device) -> None:
        self.prompt = torch.zeros(max_rows, vocab, dtype=torch.bool, device=device)
        self.reply = torch.zeros(max_rows, vocab, dtype=torch.int16, device=device)

    def start(self, slot: int, prompt: Sequence[int], reply: Sequence[int], pending: Tensor | None) -> None:
        """Reset the slot's counts: tokens on the host first, then ids that only the device has."""
        vocab = self.reply.shape[1]
        in_prompt = np.zeros(vocab, bool)
        in_prompt[np.array(prompt, np.int64)] = True
        counts = np.bincount(np.array(reply, np.int64), minlength=vocab).clip(max=_MOST)
        self.prompt[slot] = torch.from_numpy(in_prompt)
        self.reply[slot] = torch.from_numpy(counts.astype(np.int16))
        for token in pending.unbind() if pending is not None else ():
            self.add(torch.tensor([slot], device=token.device), token[None])

    def add(self, slots: Tensor, ids: Tensor) -> None:
        """Count one more reply token for each of these slots, which must be distinct."""
        self.reply[slots, ids] = self.reply[slots, ids].clamp(max=_MOST - 1) + 1

    def penalize(
        self,
        scores: Tensor,
        slots: Tensor,
        repetition: Tensor,
        presence: Tensor,
        frequency: Tensor,
        ahead: Tensor | None = None,
    ) -> Tensor:
        """Return penalized scores: repetition counts prompt and reply, presence and frequency only the reply.

        [rows, vocab] scores, with each row's slot and [rows, 1] strengths; strengths 1, 0 and 0 change no
        bit. `ahead` [2, drafts] holds rows and the draft tokens before them, which count as part of the
        reply.
        """
        counts = self.reply[slots]
        if ahead is not None:
            ones = torch.ones_like(ahead[0], dtype=torch.int32)
            counts = counts.int().index_put_((ahead[0], ahead[1]), ones, accumulate=True).clamp_(max=_MOST)
        generated = counts > 0
        shrunk = (scores.clamp(min=0) / repetition).add_(scores.clamp(max=0) * repetition)
        scores = torch.where(self.prompt[slots].logical_or_(generated), shrunk, scores)
        return scores.sub_(frequency * counts).sub_(presence * generated)
