"""One training loop for the model and its draft: packed rows in, checkpoints out, resumable at any step."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from training.chat import FIRST, LEARN
from training.model import Attend, Decoder, dense_attend, documents, flex_attend
from training.muon import Muon
from training.recipe import Schedule
from training.rounding import ROUNDINGS, rounded

IGNORE = -100
SAVE_EVERY = 300
PACE_EVERY = 100  # steps
Mask = BlockMask | Tensor
Objective = Callable[[Tensor, Tensor, Tensor, Mask, Tensor | None], Tensor]


@dataclass(frozen=True, slots=True)
class Batch:
    tokens: Tensor
    targets: Tensor
    positions: Tensor
    mask: Mask


def unpack(rows: Tensor, start: int, dense: bool) -> Batch:
    """Inputs, targets (IGNORE where nothing is learned) and the mask within documents, block-sparse or dense."""
    ids = rows & (FIRST - 1)
    tokens = ids[:, :-1].contiguous()
    targets = torch.where(rows[:, 1:] & LEARN > 0, ids[:, 1:], IGNORE).long()
    docs = documents(tokens, start, rows[:, :-1] & FIRST > 0)
    positions = torch.arange(tokens.size(1), device=rows.device)[None]
    return Batch(tokens, targets, positions, _dense_mask(docs) if dense else _block_mask(docs))


def _dense_mask(docs: Tensor) -> Tensor:
    length = docs.size(1)
    causal = torch.ones(length, length, dtype=torch.bool, device=docs.device).tril()
    return (causal & (docs[:, :, None] == docs[:, None, :]))[:, None]


@cache
def _compiled_block_mask() -> Callable[..., BlockMask]:
    """Compiled at the first use: the compiler alone takes seconds to import."""
    return torch.compile(create_block_mask, dynamic=False)


def _block_mask(docs: Tensor) -> BlockMask:
    def within(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & (docs[b, q] == docs[b, k])

    return _compiled_block_mask()(within, docs.size(0), None, docs.size(1), docs.size(1), device=docs.device)


def attend(mask: Mask) -> Attend:
    return flex_attend(mask) if isinstance(mask, BlockMask) else dense_attend(mask)


def with_exits(model: Decoder, weight: float) -> Objective:
    """Cross entropy at the last layer and at one exit per row, alternating."""

    def objective(
        tokens: Tensor, targets: Tensor, positions: Tensor, mask: Mask, keep: Tensor | None
    ) -> Tensor:
        hidden = model.hidden(tokens, positions, attend(mask), keep)
        loss = _entropy(model.logits(hidden[model.shape.layers]), targets)
        exits = model.shape.exits
        if exits:
            early = torch.cat([hidden[e][i :: len(exits)] for i, e in enumerate(exits)])
            loss = loss + weight * _entropy(
                model.logits(early), torch.cat([targets[i :: len(exits)] for i in range(len(exits))])
            )
        return loss

    return objective


def distilled_from(teacher: Decoder, model: Decoder) -> Objective:
    """The draft's loss: half from the text, half from the teacher's probabilities."""

    def objective(
        tokens: Tensor, targets: Tensor, positions: Tensor, mask: Mask, keep: Tensor | None
    ) -> Tensor:
        with torch.no_grad():
            target = teacher(tokens, positions, attend(mask)).float().softmax(-1)
        logits = model(tokens, positions, attend(mask)).float()
        learned = (targets != IGNORE).float()
        distance = -(target * logits.log_softmax(-1)).sum(-1)
        return 0.5 * _entropy(logits, targets) + 0.5 * (distance * learned).sum() / learned.sum().clamp(min=1)

    return objective


def _entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORE)


def optimizers(model: Decoder, schedule: Schedule) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for the embedding and the norms."""
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen]
    fused = others[0].is_cuda
    adam = torch.optim.AdamW(
        others, lr=schedule.vector_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=fused
    )
    return [Muon(matrices, lr=schedule.matrix_rate), adam]


def rate(step: int, schedule: Schedule) -> float:
    """The learning-rate factor: linear warm-up, constant, then linear decay to almost zero."""
    if step < schedule.warmup:
        return (step + 1) / schedule.warmup
    left = (schedule.steps - step) / (schedule.steps * (1 - schedule.decay_from))
    return min(1.0, max(left, 0.01))


def _keep(model: Decoder, schedule: Schedule, rows: int, step: int, device: torch.device) -> Tensor | None:
    """Which rows run which layer: deeper layers are skipped more often."""
    if not schedule.layer_dropout:
        return None
    depth = torch.arange(model.shape.layers, device=device) / max(model.shape.layers - 1, 1)
    drop = schedule.layer_dropout * (2.0**depth - 1)
    generator = torch.Generator(device).manual_seed(step)
    return torch.rand(model.shape.layers, rows, device=device, generator=generator) >= drop[:, None]


def weights_of(step: int, matrices: list[nn.Parameter], schedule: Schedule) -> AbstractContextManager[None]:
    """The weights of a step: unrounded, or every n-th step and all of the last in four bits."""
    if not schedule.rounded_every:
        return nullcontext()
    every = 1 if step >= schedule.steps * schedule.rounded_from else schedule.rounded_every
    return nullcontext() if step % every else rounded(matrices, ROUNDINGS[step // every % len(ROUNDINGS)])


def _picked(step: int, count: int, rows: int, seed: int) -> Tensor:
    """The rows of one step: every epoch is its own permutation, computed from the step alone."""
    epoch, at = divmod(step * rows, max(count // rows, 1) * rows)
    return torch.from_numpy(np.take(_shuffled(count, seed, epoch), range(at, at + rows), mode="wrap"))


@lru_cache(maxsize=1)
def _shuffled(count: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch)).permutation(count)


class Progress(NamedTuple):
    """Of a checkpoint: the steps that were made, those planned, and the seconds spent."""

    step: int
    steps: int
    spent: float


class Pace:
    """The number of steps for a time limit, estimated again from the speed so far. The first steps, which compile, do not count."""

    def __init__(self, first: int, spent: float, limit: float | None) -> None:
        self._first, self._before, self._limit = first, spent, limit
        self._began = time.perf_counter()
        self._measured: float | None = None  # when the steady steps began

    def spent(self) -> float:
        """Seconds of training, with those of interrupted runs."""
        return self._before + time.perf_counter() - self._began

    def steps(self, step: int, usual: int) -> int:
        """The number of steps in all, asked before `step`."""
        ran = step - self._first
        if self._limit is None or not ran or ran % PACE_EVERY:
            return usual
        if self._measured is None:
            self._measured = time.perf_counter()
            return usual
        each = (time.perf_counter() - self._measured) / (ran - PACE_EVERY)
        return step + max(0, round((self._limit - self.spent()) / each))


@contextmanager
def stoppable() -> Iterator[threading.Event]:
    """An event that SIGTERM sets, so that the step is finished and saved."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, before)


def fit(
    model: Decoder,
    objective: Objective,
    data: Tensor,
    start: int,
    schedule: Schedule,
    file: Path,
    seed: int,
    say: Callable[[str], None],
    limit: float | None = None,
) -> None:
    """Train to the last step, from the checkpoint in `file` if there is one.

    `limit`: seconds of training; the schedule's steps are then only a first estimate. After SIGTERM it saves and exits.
    """
    device = data.device
    optims = optimizers(model, schedule)
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    first, steps, spent = _resume(model, optims, file)
    schedule = replace(schedule, steps=steps or schedule.steps) if limit else schedule
    run = torch.compile(objective, dynamic=False) if device.type == "cuda" else objective
    pace, began, seen, step = Pace(first, spent, limit), time.perf_counter(), 0, first
    with stoppable() as stop:
        while step < schedule.steps:
            picked = _picked(step, len(data), schedule.rows, seed)
            batch = unpack(data[picked.to(device)], start, dense=device.type != "cuda")
            keep = _keep(model, schedule, schedule.rows, step, device)
            with weights_of(step, matrices, schedule):
                with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                    loss = run(batch.tokens, batch.targets, batch.positions, batch.mask, keep)
                loss.backward()
            for optim, base in zip(optims, (schedule.matrix_rate, schedule.vector_rate), strict=True):
                for group in optim.param_groups:
                    group["lr"] = base * rate(step, schedule)
                optim.step()
                optim.zero_grad(set_to_none=True)
            seen += batch.tokens.numel()
            if (step + 1) % max(schedule.steps // 24, 1) == 0 or step == first:
                lasted = time.perf_counter() - began
                say(
                    f"  step {step + 1}/{schedule.steps}  loss {loss.item():.4f}  {seen / lasted / 1e6:.2f} M tokens/s  {lasted:.0f} s"
                )
            step += 1
            schedule = replace(schedule, steps=pace.steps(step, schedule.steps))
            if step % SAVE_EVERY == 0 or step >= schedule.steps or stop.is_set():
                save(model, optims, Progress(step, schedule.steps, pace.spent()), file)
            if stop.is_set() and step < schedule.steps:
                raise SystemExit(f"stopped after step {step} of {schedule.steps}; the same command continues")


def save(model: Decoder, optims: list[torch.optim.Optimizer], progress: Progress, file: Path) -> None:
    """Write to a temporary file and rename it, so that an interrupted write leaves the older checkpoint intact."""
    part = file.with_suffix(".part")
    states = {"model": model.state_dict(), "optims": [o.state_dict() for o in optims]}
    torch.save({**progress._asdict(), **states}, part)
    part.replace(file)


def _resume(model: Decoder, optims: list[torch.optim.Optimizer], file: Path) -> Progress:
    if not file.exists():
        return Progress(0, 0, 0.0)
    saved = torch.load(file, map_location=next(model.parameters()).device, weights_only=True)
    model.load_state_dict(saved["model"])
    for optim, state in zip(optims, saved["optims"], strict=True):
        optim.load_state_dict(state)
    return Progress(saved["step"], saved["steps"], saved["spent"])
