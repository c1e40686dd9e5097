"""The model's own replies, and the hidden states from which heads guess their tokens."""

from collections.abc import Iterator
from random import Random

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from training.chat import FIRST, LEARN
from training.decode import How, replies
from training.model import Decoder
from training.recipe import HeadRecipe
from training.rows import pack
from training.train import IGNORE, attend, unpack

BATCH = 16  # rows whose states are computed at a time
HOWS = (
    How(),
    How(temperature=0.7, top_p=0.95),
)  # the replies: by turns as benchmarks and as users sample them


def prompts_in(rows: np.ndarray, start: int, longest: int, rng: Random) -> Iterator[list[int]]:
    """Of each chat in packed rows: its text up to one of its replies, chosen at random."""
    for row in rows:
        ids, learned = row & (FIRST - 1), (row & LEARN) > 0
        begins = np.flatnonzero(((row & FIRST) > 0) | (ids == start))
        for first, end in zip(begins, [*begins[1:], len(row)], strict=True):
            turns = 1 + np.flatnonzero(learned[first + 1 : end] & ~learned[first : end - 1])
            fitting = [int(turn) for turn in turns if turn <= longest]
            if fitting and not learned[first + 1]:  # not plain text
                yield ids[first : first + rng.choice(fitting)].tolist()


def own_rows(model: Decoder, prompts: list[list[int]], end: int, pad: int, recipe: HeadRecipe) -> np.ndarray:
    """Rows of prompts and the model's replies to them. Only the replies are marked to be learned."""
    items = []
    for number, how in enumerate(HOWS):
        asked = prompts[number :: len(HOWS)]
        for prompt, reply in zip(
            asked, replies(model, asked, recipe.longest_reply, end, how, recipe.seed), strict=True
        ):
            items.append([*prompt, *(token | LEARN for token in [*reply, end])])
    Random(recipe.seed).shuffle(items)
    return pack(items, len(items), model.shape.context + 1, pad)


@torch.no_grad()
def states_of(model: Decoder, rows: np.ndarray, start: int, count: int, device: str) -> tuple[Tensor, Tensor]:
    """The last hidden states from which tokens of replies are sampled, and the `count` tokens after those."""
    states, ahead = [], []
    cuda, depth = device == "cuda", model.shape.layers
    run = torch.compile(model.hidden, dynamic=False) if cuda else model.hidden
    for at in range(0, len(rows), BATCH):
        few = rows[at : at + BATCH]
        few = np.pad(few, ((0, BATCH - len(few)), (0, 0))) if cuda else few  # one compiled size
        batch = unpack(torch.from_numpy(few.astype(np.int32)).to(device), start, dense=not cuda)
        with torch.autocast(device, torch.bfloat16, enabled=cuda):
            hidden = run(batch.tokens, batch.positions, attend(batch.mask))[depth]
        hidden = model.model.norm(hidden.float())
        later = F.pad(batch.targets, (0, count), value=IGNORE)
        later = torch.stack([later[:, k : k + batch.targets.size(1)] for k in range(count + 1)], -1)
        later = later.masked_fill((later == IGNORE).cumsum(-1) > 0, IGNORE)  # nothing after the reply's end
        inside = later[..., 1] != IGNORE
        states.append(hidden[inside].to(torch.bfloat16))
        ahead.append(later[inside][:, 1:])
    return torch.cat(states), torch.cat(ahead)
