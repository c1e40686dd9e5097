"""Compiles the kernels of steps before they are launched."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from engine.api.events import log
from engine.execution.cuda.graphs import Stage
from engine.execution.cuda.sampling_fields import SamplingFlags, sampling_of
from engine.execution.in_flight import ModelInput
from engine.execution.protocol import Compilation, StepKind
from engine.models.adapters.products import StepAdapters
from engine.sampling.rows import SamplingInputs
from engine.scheduling.step import Rows, Step, StepRow

_LARGE = 10  # from this bit length of the token count on, steps of all sizes use the same kernels

Launches = Callable[[], object]
StartCompiling = Callable[[Sequence[StepKind]], Sequence[Compilation]]


class StepCompiler:
    """Compiles each kind of step once."""

    def __init__(self) -> None:
        self._compiled: set[Hashable] = set()
        self._begun = False

    def compile(self, stage: Stage, kind: Hashable, launches: Callable[..., object], *given: Any) -> None:
        if compilation := self.start(stage, {kind: partial(launches, *given)}):
            compilation.wait()

    def start(self, stage: Stage, steps: Mapping[Hashable, Launches]) -> Compilation | None:
        """The same for the launches of a step of each kind, without waiting for the compiler."""
        missing = {kind: launches for kind, launches in steps.items() if kind not in self._compiled}
        if not missing:
            return None
        compilation = stage.start_compiling(missing)
        self._compiled.update(missing)
        return compilation

    def begin(self, step: Step, start: StartCompiling, pieces: Sequence[int]) -> None:
        """Before the first step, compile it and the next token's at once: each alone keeps few cores busy.

        `start`: see Runner. `pieces`: the numbers of tokens of graphs with pieces of prompts.
        """
        if self._begun:
            return
        self._begun = True
        prompt = len(step.ids) - step.single
        kinds = [StepKind(0, prompt), StepKind(0, prompt, pieces=True)] if prompt else []
        kinds = [kind for kind in kinds if not kind.pieces or prompt <= max(pieces, default=0)]
        try:
            for compilation in start([*kinds, StepKind(1)]):
                compilation.wait()
        except Exception:
            log.exception("kernels were not compiled ahead; a step that needs one reports why")

    def forget(self) -> None:
        """A weight or product has been replaced."""
        self._compiled.clear()
        self._begun = False


def kind_of(
    piece: ModelInput, inputs: SamplingInputs | None, adapters: StepAdapters | None = None
) -> Hashable:
    """What the kernels of a step depend on; its size matters roughly by powers of two."""
    size = min((len(piece.ids) - 1).bit_length(), _LARGE)
    return size, piece.single > 0, inputs and SamplingFlags.of(inputs), adapters and adapters.layout


def sampling_kind(inputs: SamplingInputs) -> Hashable:
    """The same of what follows the hidden states of a graph."""
    return "sampling", (len(inputs.numbers) - 1).bit_length(), SamplingFlags.of(inputs)


def example(kind: StepKind, vocab: int, *, samples: bool = True) -> tuple[ModelInput, SamplingInputs | None]:
    """Return a step with a prompt. It can be compiled, but not run: it has no blocks.

    `samples`: False in a stage of a pipeline before the last one.
    """
    rows = Rows.of([StepRow(0, 0, 0, length, True) for length in (*[1] * kind.rows, kind.prompt)])
    ids = np.zeros(kind.rows + kind.prompt, np.int64)
    inputs = sampling_of(kind, len(rows), vocab) if samples else None
    return ModelInput(rows, ids, kind.rows, rows, {}), inputs
