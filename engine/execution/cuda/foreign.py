"""Steps of models that transformers runs, with our attention, sampling and CUDA graphs.

The model's own code runs between attention kernels, as it is. A graph can hold it only if it neither waits
for the device nor takes numbers of the step from the host. Nothing promises that, so a step is tried.
"""

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.attention.graph_work import GraphMetadata
from engine.attention.triton_backend import TritonAttention, TritonMetadata
from engine.execution.cuda.arrivals import Wait
from engine.execution.cuda.graphs import Stage
from engine.execution.cuda.recording import Recorder, Recording
from engine.kv.store import KVLayer, KVStore
from engine.models.base import LanguageModel

logger = logging.getLogger("minichat.engine")

Launches = Callable[[], tuple[Tensor, ...]]

ROWS = 2  # of the step that is captured on trial
CLOSE = 1e-3  # the same kernels have run


class ForeignDecoder:
    """The forward of a model, as GpuStage calls that of a decoder. Its stream starts as token ids."""

    def __init__(self, model: LanguageModel, layers: Sequence[KVLayer], attention: TritonAttention) -> None:
        self._model, self._layers, self._attention = model, layers, attention

    def embed(self, ids: Tensor, slots: Tensor, last_ids: Tensor) -> Tensor:
        """An id of -1 is the last token sampled in its slot."""
        return torch.where(ids < 0, last_ids[slots], ids)

    def embedded(self, ids: Tensor) -> Tensor:
        return ids

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        places: Tensor,
        metadata: TritonMetadata | GraphMetadata,
        adapters: object = None,
        wait: Wait = None,
    ) -> Tensor:
        def attend(index: int, q: Tensor, k: Tensor, v: Any) -> Tensor:
            if wait is not None:
                wait(index)
            layer = self._layers[index]
            return self._attention.attend_plainly(q, k, v, layer, *metadata.of(layer, places))

        return self._model.forward(x, positions, attend)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._model.logits(hidden)

    def pdl(self, tokens: int) -> bool:
        return False


class TrialInputs:
    """The inputs of a step of `ROWS` decodes at fixed addresses. It fills cells of two blocks."""

    def __init__(self, stage: Stage, store: KVStore, device: torch.device, context: int) -> None:
        self._work, self._size, self._context = stage.work(ROWS), store.layers[0].block_size, context
        rows = {name: torch.zeros(ROWS, dtype=torch.int64, device=device) for name in ("ids", "positions")}
        self.fields: dict[str, Tensor] = {
            **rows,
            "places": torch.arange(ROWS, device=device) * self._size,
            "slots": torch.arange(ROWS, device=device),
            "contexts": torch.ones(ROWS, dtype=torch.int64, device=device),
        }
        self.last_ids = torch.zeros(ROWS + 1, dtype=torch.int64, device=device)
        self._numbers = torch.zeros(self._work.numbers, dtype=torch.int32, device=device)
        tables = torch.arange(ROWS + 1, dtype=torch.int32, device=device)[:, None].contiguous()
        where = self._numbers, tables, self.fields["slots"], self.fields["contexts"]
        self._others = [
            (tables + ROWS * at, torch.zeros_like(self.fields["places"]))
            for at in range(1, len(store.groups))
        ]
        self.metadata = self._work.metadata(*where, cut=False, decodes=True, others=self._others)

    def fill(self, turn: int) -> None:
        """The inputs of the first or the second token of each row, at positions far from each other."""
        each, fields = torch.arange(ROWS), self.fields
        fields["ids"].copy_(3 + 5 * each + 7 * turn)
        fields["positions"].copy_((11 + 23 * each + 41 * turn) % self._context)
        fields["places"].copy_(each * self._size + turn)
        for at, (_, places) in enumerate(self._others, 1):
            places.copy_((each + ROWS * at) * self._size + turn)
        fields["contexts"].fill_(turn + 1)
        numbers = np.zeros(self._work.numbers, np.int32)
        ones = np.ones(ROWS, np.int32)
        self._work.fill(numbers, np.arange(ROWS), ones * (turn + 1), ones)
        self._numbers.copy_(torch.from_numpy(numbers))


def can_be_captured(stage: Stage, store: KVStore, model: LanguageModel, device: torch.device) -> bool:
    """Capture a step on trial, and log the reason if that fails. The cache must be empty."""
    if store.layers[0].block_size < 2 or len(store.layers[0].keys) < ROWS * len(store.groups):
        return False
    inputs, recorder = TrialInputs(stage, store, device, model.config.max_context), Recorder(device)

    def launches() -> tuple[Tensor, ...]:
        return (stage.logits(inputs.fields, inputs.last_ids, inputs.metadata),)

    def one_by_one() -> tuple[Tensor, ...]:
        with recorder.launching():
            return launches()

    recording = Recording(recorder, launches, lambda: stage.start_compiling({"on trial": launches}))
    problem = why_not_captured(one_by_one, recording.run, inputs.fill, waits_refused())
    if problem:
        logger.warning("%s models run without CUDA graphs: %s", model.config.family, problem)
    return not problem


@torch.inference_mode()
def why_not_captured(
    one_by_one: Launches,
    captured: Launches,
    fill: Callable[[int], None],
    unwaited: AbstractContextManager[None],
) -> str:
    """Compare replays of a step with the same step launched kernel by kernel, for two inputs.

    Return "" if they agree, else the reason. `captured`: its first call only prepares for the capture.
    `unwaited`: within it, whatever waits for the device raises: a capture that fails on it leaves a mess.
    """
    try:
        fill(0)
        captured()
        with unwaited:
            one_by_one()
        for turn in (0, 1):
            fill(turn)
            (expected,) = (each.clone() for each in one_by_one())
            (found,) = captured()
            if not bool((found - expected).norm() <= CLOSE * expected.norm()):
                return "the results of a captured step differ"
    except RuntimeError as error:
        return f"a step cannot be captured ({str(error).strip().partition(chr(10))[0]})"
    return ""


@contextmanager
def waits_refused() -> Iterator[None]:
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():  # that torch does not find every wait
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
