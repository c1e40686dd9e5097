"""Runs one architecture in every way, and compares it with transformers."""

import json
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import torch

import engine.assembly
from engine.api.errors import EngineError, UnsupportedModel
from engine.models.decoder import Decoder
from tests.matrix.small import NotSmall, config_of, make
from tests.models.tiny import plain_attend
from tests.runner.letters import byte_tokenizer
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
        except Exception as error:  # its classes may need packages, or fields that small.py does not have
            why = str(error) if isinstance(error, NotSmall) else f"transformers: {_first_line(error)}"
            return refused_anyway(model_type, Path(folder)) or Result(model_type, "not checked", why)
        return compared(model_type, theirs, Path(folder))


def refused_anyway(model_type: str, folder: Path) -> Result | None:
    """Whether the engine refuses an architecture that transformers does not build, by its config.json.

    If that cannot be made small either, it is the default one.
    """
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    try:
        config_of(model_type).save_pretrained(folder)
    except Exception:
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    try:
        engine_on(folder, dummy_weights=True)
    except UnsupportedModel as error:
        return Result(model_type, "refused", _reason(error, folder))
    except EngineError:  # the config is not complete
        return None
    return None


def compared(model_type: str, theirs: Any, folder: Path) -> Result:
    with patch.object(engine.assembly, "load_model", cache(engine.assembly.load_model)):
        return _compared(model_type, theirs, folder)


def _compared(model_type: str, theirs: Any, folder: Path) -> Result:
    try:
        alone = engine_on(folder)
    except EngineError as error:
        return Result(model_type, "refused", _reason(error, folder))
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


def _reason(error: Exception, folder: Path) -> str:
    return _first_line(error).replace(f"{folder}/config.json: ", "")


def _first_line(error: Exception) -> str:
    return next((line for line in map(str.strip, str(error).splitlines()) if line), type(error).__name__)
