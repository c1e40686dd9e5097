"""What tests of drafting heads share: where they run, the drafts that a head has made, and a recording."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from engine.execution.draft.next_tokens import NextTokens
from engine.scheduling.step import StepRow
from engine.serving.engine import Engine
from engine.speculation.gain import Judge
from tests.outputs import Output
from tests.runner.graphs.plain_stage import with_staging
from tests.runner.replies.test_company import A, B
from tests.runner.rows.test_speculation import LETTERS
from tests.runner.small import GREEDY, ask, drain, turn_until

# A CPU may run decode steps through the staging buffers of graphs.
REPLAYED = ["staging", pytest.param("cuda", marks=pytest.mark.cuda)]


def on(way: str) -> dict[str, str]:
    """The configuration of an engine for one of these."""
    return {"device": "cuda"} if way == "cuda" else {}


def replaying(way: str, engine: Engine) -> Engine:
    """The engine, with its decode steps in graphs or through their buffers."""
    return with_staging(engine) if way == "staging" else engine


def noted_drafts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, tuple[int, ...]]]:
    """A list that gets, of each verification from now on, its position and the drafts of the head."""
    seen: list[tuple[int, tuple[int, ...]]] = []

    def observed(self: NextTokens, row: StepRow, drafts: tuple[int, ...]) -> None:
        seen.append((row.start, drafts))

    monkeypatch.setattr(NextTokens, "observe", observed)
    monkeypatch.setattr(Judge, "observe", lambda *_: None)  # it would pause
    return seen


def record_drafts(engine: Engine, path: Path, prompt: Sequence[int]) -> None:
    """Record two requests that draft. One is preempted in the middle and forked."""
    engine.record(path)
    params = replace(GREEDY, max_tokens=40, logit_bias=LETTERS, speculate="draft")
    first, output = ask(engine, [*prompt], params)
    ask(engine, [1, A, B, A], params)
    turn_until(engine, lambda: len(output.tokens) > 4)
    engine.preempt(first)
    engine.fork(first, Output())
    drain(engine)
    engine.stop_recording()
