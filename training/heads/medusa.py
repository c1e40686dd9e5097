"""Medusa heads, trained with the model frozen.

Each head reads the last hidden state and shares the model's output matrix, so it is one small matrix per block.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from training.chat import END_TURN, PAD, START, token_id
from training.heads.replies import own_rows, prompts_in, states_of
from training.model import Decoder
from training.muon import Muon
from training.recipe import HeadRecipe, Schedule
from training.train import IGNORE

Say = Callable[[str], None]


class Residual(nn.Module):
    """A block as Medusa's own code has it. Starts as the identity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.linear(x))


class Heads(nn.Module):
    """Head k guesses the token k + 1 places after the newest one. Its names are those of a Medusa checkpoint."""

    def __init__(self, count: int, layers: int, width: int) -> None:
        super().__init__()
        self.layers = layers
        self.heads = nn.ModuleList(
            nn.ModuleList(Residual(width) for _ in range(layers)) for _ in range(count)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """[N, width] -> [heads, N, width], for the model's output matrix."""
        found = []
        for blocks in self.heads:
            x = hidden
            for block in blocks:
                x = block(x)
            found.append(x)
        return torch.stack(found)


def loss_of(heads: Heads, out: Tensor, states: Tensor, ahead: Tensor) -> Tensor:
    logits = F.linear(heads(states), out).flatten(0, 1)
    return F.cross_entropy(logits, ahead.mT.flatten(), ignore_index=IGNORE)


def fit(
    heads: Heads, out: Tensor, states: Tensor, ahead: Tensor, schedule: Schedule, seconds: float, say: Say
) -> None:
    """Train on states in random order, until the steps or the time are used up. The rates fall to zero."""
    parts = list(heads.parameters())
    optims = (
        Muon([p for p in parts if p.ndim == 2], lr=schedule.matrix_rate, decay=0.0),
        torch.optim.AdamW([p for p in parts if p.ndim == 1], lr=schedule.vector_rate, weight_decay=0.0),
    )
    generator = torch.Generator(states.device).manual_seed(1)
    began, share, step = time.perf_counter(), 0.0, 0
    while share < 1.0:
        picked = torch.randint(len(states), (schedule.rows,), device=states.device, generator=generator)
        loss = loss_of(heads, out, states[picked].float(), ahead[picked])
        loss.backward()
        for optim, base in zip(optims, (schedule.matrix_rate, schedule.vector_rate), strict=True):
            for group in optim.param_groups:
                group["lr"] = base * min(1.0, (step + 1) / schedule.warmup, (1 - share) / 0.6)
            optim.step()
            optim.zero_grad(set_to_none=True)
        step += 1
        spent = time.perf_counter() - began
        share = max(spent / seconds, step / schedule.steps)
        if step & (step - 1) == 0 or share >= 1.0:
            say(f"  step {step}  loss {loss.item():.4f}  {spent:.0f} s")


@torch.no_grad()
def ranks_of(heads: Heads, out: Tensor, states: Tensor, ahead: Tensor) -> Tensor:
    """[N, heads]: how many tokens each head found more likely than the reply's; IGNORE after its end."""
    found = []
    for some, tokens in zip(states.split(4096), ahead.split(4096), strict=True):
        logits = F.linear(heads(some.float()), out).transpose(0, 1)
        own = logits.gather(2, tokens.clamp(min=0)[..., None])
        found.append((logits > own).sum(-1).masked_fill(tokens == IGNORE, IGNORE))
    return torch.cat(found)


def tokens_by_drafts(ranks: Tensor, most: int) -> tuple[list[float], list[float]]:
    """Tokens per verification with 1 to `most` drafts: as a chain of the likeliest, and as the best tree.

    A draft of a tree is a path of ranks, and the best ones are the most frequent.
    """
    shares = [
        (ranks[(ranks[:, :depth] != IGNORE).all(1), :depth].unique(dim=0, return_counts=True)[1]) / len(ranks)
        for depth in range(1, ranks.size(1) + 1)
    ]
    tree = torch.cat(shares).sort(descending=True).values[:most]
    chain = (ranks == 0).cumprod(1).float().mean(0)[:most]
    return (1 + chain.cumsum(0)).tolist(), (1 + tree.cumsum(0)).tolist()


def save_heads(heads: Heads, folder: Path) -> None:
    """Write a folder for `--draft`: Medusa's names, bf16, without output matrices, as they are the model's."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"medusa_num_heads": len(heads.heads), "medusa_num_layers": heads.layers}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    weights = {
        name.removeprefix("heads."): tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in heads.state_dict().items()
    }
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def run_heads(
    model: Decoder,
    tokenizer: Tokenizer,
    rows: np.ndarray,
    recipe: HeadRecipe,
    work: Path,
    out: Path,
    device: str,
    say: Say,
) -> None:
    """Generate the replies, or take those in `work`; train the heads, measure them on other replies, export."""
    start, end, pad = (token_id(tokenizer, text) for text in (START, END_TURN, PAD))
    model = model.eval().requires_grad_(False)
    if not (file := work / "replies.npy").exists():
        prompts = list(prompts_in(rows, start, recipe.longest_prompt, Random(recipe.seed)))
        say(f"{len(prompts)} prompts")
        np.save(file, own_rows(model, prompts, end, pad, recipe))
    own = np.load(file)
    states, ahead = states_of(model, own, start, recipe.heads, device)
    say(f"{len(states)} tokens of replies")
    held = max(1, len(states) // 50)  # the last: of other prompts
    heads = Heads(recipe.heads, recipe.layers, model.shape.hidden).to(device)
    matrix = model.model.embed_tokens.weight
    fit(heads, matrix, states[:-held], ahead[:-held], recipe.schedule, recipe.seconds, say)
    ranks = ranks_of(heads, matrix, states[-held:], ahead[-held:])
    for name, found in zip(("chain", "tree"), tokens_by_drafts(ranks, 16), strict=True):
        say(f"tokens per verification, a {name} of 1, 2, ...: " + ", ".join(f"{each:.2f}" for each in found))
    save_heads(heads, out)
