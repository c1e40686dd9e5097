"""Runs one architecture in every way, and compares it with transformers."""

import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import torch

import engine.assembly
from engine.api.errors import EngineError
from engine.models.decoder import Decoder
from tests.matrix.small import NotSmall, make
from tests.models.tiny import plain_attend
from tests.runner.replies.test_transformers import PROMPT, WAYS, assert_as_in_transformers, generate
from tests.runner.small import GREEDY, ask, drain, engine_on

Status = Literal["native", "bridge", "refused", "not checked", "differs"]
TOKENS = 100


@dataclass(frozen=True)
class Result:
    """What became of an architecture. `why`: for all but the first two."""

    model_type: str
    status: Status
    why: str = ""


def check(model_type: str) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        try:
            theirs = make(model_type, Path(folder))
        except NotSmall as error:
            return Result(model_type, "not checked", str(error))
        except Exception as error:  # its classes may need packages, or fields that small.py does not have
            return Result(model_type, "not checked", f"transformers does not build it: {_first_line(error)}")
        return compared(model_type, theirs, Path(folder))


def compared(model_type: str, theirs: Any, folder: Path) -> Result:
    with patch.object(engine.assembly, "load_model", cache(engine.assembly.load_model)):
        return _compared(model_type, theirs, folder)


def _compared(model_type: str, theirs: Any, folder: Path) -> Result:
    try:
        alone = engine_on(folder)
    except EngineError as error:
        return Result(model_type, "refused", _first_line(error).replace(f"{folder}/config.json: ", ""))
    model = alone.runner.model
    failed = [] if _forward_agrees(model, theirs) else ["one forward"]
    for way, (run, config) in WAYS.items():
        output = run(engine_on(folder, depth=1, **config))
        try:
            assert_as_in_transformers(theirs, PROMPT, output)
        except AssertionError:
            failed.append(way)
    _, output = ask(alone, PROMPT, GREEDY.changed(max_tokens=TOKENS))
    drain(alone)
    if output.tokens != generate(theirs, PROMPT, TOKENS):
        failed.append(f"text of {TOKENS} tokens")
    if failed:
        return Result(model_type, "differs", ", ".join(failed))
    return Result(model_type, "native" if isinstance(model, Decoder) else "bridge")


@torch.inference_mode()
def _forward_agrees(model: Any, theirs: Any) -> bool:
    """Compare all logits of one forward over two rows, without the cache."""
    rows = [torch.arange(3, 130), torch.arange(40, 77)]
    lengths = [len(row) for row in rows]
    positions = torch.cat([torch.arange(length) for length in lengths])
    hidden = model.forward(
        torch.cat(rows), positions, plain_attend(model.config.layers, lengths, model.sinks)
    )
    expected = torch.cat([theirs(row[None]).logits[0] for row in rows])
    return torch.allclose(model.logits(hidden), expected, atol=1e-4, rtol=1e-4)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
