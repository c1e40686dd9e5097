"""Masks logits with the tokens a grammar allows, on the logits' device."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def mask_logits(logits: Tensor, rows: Sequence[int], bits: np.ndarray) -> None:
    """Set these rows' disallowed logits to -inf. `bits` [rows, bytes]: one bit per token, lowest first."""
    sent = torch.from_numpy(~bits).to(logits.device, non_blocking=True)
    shifts = torch.arange(8, dtype=torch.uint8, device=logits.device)
    disallowed = (sent[:, :, None] >> shifts & 1).view(torch.bool).flatten(1)[:, : logits.shape[1]]
    if len(rows) == len(logits):
        logits.masked_fill_(disallowed, -torch.inf)
    else:
        at = torch.tensor(rows, device=logits.device)
        logits[at] = logits[at].masked_fill(disallowed, -torch.inf)
