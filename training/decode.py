"""Many replies at once for the evaluation: greedy, top-p and beams over a plain cache."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from training.model import Attend, Decoder

MOST_CELLS = {"cpu": 400_000, "cuda": 1_600_000}  # rows times length of one batch


@dataclass(frozen=True, slots=True)
class How:
    """Greedy by default; with beams the two other fields are not used."""

    temperature: float = 0.0
    top_p: float = 1.0
    beams: int = 1


class Cache:
    """Keys and values of a batch with prompts padded on the left."""

    def __init__(self, model: Decoder, pads: Tensor, length: int) -> None:
        shape, weight = model.shape, model.model.embed_tokens.weight
        size = (shape.layers, len(pads), shape.kv_heads, length, shape.head_dim)
        self.keys = torch.zeros(size, dtype=weight.dtype, device=weight.device)
        self.values = torch.zeros_like(self.keys)
        self.real = torch.arange(length, device=weight.device)[None] >= pads[:, None]
        self.pads, self.used = pads, 0

    def attend(self, count: int) -> Attend:
        """Attention of the next `count` tokens over all before them."""
        first, last = self.used, self.used + count
        steps = torch.arange(first, last, device=self.pads.device)
        seen = torch.arange(last, device=self.pads.device)[None] <= steps[:, None]
        mask = (seen[None] & self.real[:, None, :last])[:, None]
        mask |= torch.eye(last, dtype=torch.bool, device=mask.device)[
            first:last
        ]  # a pad attends to itself; otherwise its softmax would be empty

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self.keys[layer, :, :, first:last], self.values[layer, :, :, first:last] = k, v
            return F.scaled_dot_product_attention(
                q,
                self.keys[layer, :, :, :last],
                self.values[layer, :, :, :last],
                attn_mask=mask,
                enable_gqa=True,
            )

        return attend

    def run(self, model: Decoder, tokens: Tensor) -> Tensor:
        """Append `tokens` to the cache and return the logits after the last one."""
        count = tokens.size(1)
        positions = (
            torch.arange(self.used, self.used + count, device=tokens.device)[None] - self.pads[:, None]
        ).clamp(min=0)
        hidden = model.hidden(tokens, positions, self.attend(count))[model.shape.layers]
        self.used += count
        return model.logits(hidden[:, -1]).float()

    def choose(self, rows: Tensor) -> None:
        """Reorder the rows: row i continues from row `rows[i]`."""
        self.keys[:, :, :, : self.used] = self.keys[:, rows, :, : self.used]
        self.values[:, :, :, : self.used] = self.values[:, rows, :, : self.used]


@torch.inference_mode()
def replies(
    model: Decoder, prompts: Sequence[list[int]], most: int, end: int, how: How = How(), seed: int = 1
) -> list[list[int]]:
    """The model's continuation of each prompt, up to `end` or `most` tokens."""
    device = model.model.embed_tokens.weight.device
    generator = torch.Generator(device).manual_seed(seed)
    found: list[list[int]] = [[] for _ in prompts]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    while order:
        longest = len(prompts[order[-1]])
        size = max(1, MOST_CELLS[device.type] // ((longest + most) * how.beams))
        batch, order = order[-size:], order[:-size]
        rows = [[end] * (longest - len(prompts[i])) + prompts[i] for i in batch]
        pads = torch.tensor([longest - len(prompts[i]) for i in batch], device=device)
        tokens = torch.tensor(rows, device=device)
        room = max(1, min(most, model.shape.context - longest))
        written = (
            _beams(model, tokens, pads, room, end, how)
            if how.beams > 1
            else _draws(model, tokens, pads, room, end, how, generator)
        )
        for i, ids in zip(batch, written.tolist(), strict=True):
            found[i] = ids[: ids.index(end)] if end in ids else ids
    return found


def _draws(
    model: Decoder, tokens: Tensor, pads: Tensor, most: int, end: int, how: How, generator: torch.Generator
) -> Tensor:
    cache = Cache(model, pads, tokens.size(1) + most)
    out, done = [], torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
    for _ in range(most):
        logits = cache.run(model, tokens)
        chosen = (
            logits.argmax(-1)
            if how.temperature == 0
            else _nucleus(logits / how.temperature, how.top_p, generator)
        )
        chosen = torch.where(done, end, chosen)
        out.append(chosen)
        done |= chosen == end
        if done.all():
            break
        tokens = chosen[:, None]
    return torch.stack(out, 1)


def _nucleus(logits: Tensor, top_p: float, generator: torch.Generator) -> Tensor:
    ranked, ids = logits.softmax(-1).sort(-1, descending=True)
    ranked = ranked.masked_fill(ranked.cumsum(-1) - ranked > top_p, 0.0)
    return ids.gather(1, torch.multinomial(ranked, 1, generator=generator))[:, 0]


def _beams(model: Decoder, tokens: Tensor, pads: Tensor, most: int, end: int, how: How) -> Tensor:
    """The text with the best mean log probability; a finished beam continues with `end` at no cost."""
    width, count = how.beams, len(tokens)
    cache = Cache(model, pads.repeat_interleave(width), tokens.size(1) + most)
    tokens = tokens.repeat_interleave(width, 0)
    first = torch.arange(count, device=tokens.device)[:, None] * width
    scores = torch.full((count, width), -1e9, device=tokens.device)
    scores[:, 0] = 0.0
    out = torch.empty(count * width, 0, dtype=torch.long, device=tokens.device)
    lengths = torch.ones(count * width, device=tokens.device)
    done = torch.zeros(count * width, dtype=torch.bool, device=tokens.device)
    for _ in range(most):
        step = cache.run(model, tokens).log_softmax(-1)
        step[done] = -1e9
        step[done, end] = 0.0
        total = (scores[..., None] + step.view(count, width, -1)).flatten(1)
        scores, picked = total.topk(width, -1)
        rows = (first + picked // step.size(-1)).flatten()
        chosen = (picked % step.size(-1)).flatten()
        cache.choose(rows)
        out = torch.cat((out[rows], chosen[:, None]), 1)
        lengths = lengths[rows] + ~done[rows]
        done = done[rows] | (chosen == end)
        tokens = chosen[:, None]
        if done.all():
            break
    best = (scores / lengths.view(count, width)).argmax(-1) + first[:, 0]
    return out[best]
