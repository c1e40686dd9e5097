"""One table row per scheme: its distance from the unquantized model on a text, its memory and its speed."""

import gc
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch

from engine.api.config import EngineConfig
from engine.api.errors import BadInput, EngineError
from engine.api.params import SamplingParams
from engine.execution.runner import ModelRunner
from engine.models.find import BUILT_IN
from engine.quality.schemes import REFERENCE, SchemePair
from engine.quality.score import STRETCH, Score, read
from engine.serving.engine import Engine
from engine.start import start

ROWS = (1, 8, 32)  # batch sizes whose speed is measured
PROMPT, REPLY = 64, 32  # tokens of each row


@dataclass(frozen=True, slots=True)
class QualityRow:
    """The measurements of one scheme."""

    scheme: str
    perplexity: float
    kl: float  # nats per token, from the unquantized model
    top1: float  # share of positions with the same top token as the unquantized model
    bytes: int  # of the weights
    kv_bytes: int  # per token in the KV cache
    load_s: float
    ttft_s: float | None = None  # of a prompt of PROMPT tokens, alone
    tok_s: float | None = None  # decoding, one row
    tok_s_8: float | None = None
    tok_s_32: float | None = None


def own_text(model: str) -> str:
    """Return prose; for the built-in model, stories like its training data, with names not in it."""
    name = "stories.txt" if model == BUILT_IN else "text.txt"
    return (files("engine.quality") / name).read_text(encoding="utf-8")


def compare(
    config: EngineConfig,
    pairs: Sequence[SchemePair],
    text: str,
    *,
    most: int = 2048,
    speed: bool = True,
    refused: Callable[[str, str], None] = lambda scheme, reason: None,
    begun: Callable[[str], None] = lambda scheme: None,
) -> Iterator[QualityRow]:
    """Yield a row per scheme as soon as it is measured. `refused` is called for schemes that cannot run,
    `begun` for each that is measured next.

    The unquantized model always runs first, even if it is not in `pairs`. Its log probabilities are stored
    in a temporary file: 4 bytes per vocabulary entry and token.
    """
    ordered = [REFERENCE, *(each for each in pairs if each != REFERENCE)]
    with _scratch() as folder:
        reference: Path | None = None
        for choice in ordered:
            begun(choice.name)
            began = time.perf_counter()
            try:
                engine = start(_config(config, choice))
            except BadInput as error:
                if reference is None:  # the model itself cannot be loaded
                    raise
                refused(choice.name, str(error))
                continue
            loaded = time.perf_counter() - began
            ids = _ids(engine, text, most)
            if reference is None:
                reference = _reference(engine, ids, folder / "reference")
            row = _row(choice.name, engine, ids, reference, loaded, speed=speed)
            del engine
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            if choice in pairs:
                yield row


@contextmanager
def _scratch() -> Iterator[Path]:
    """A temporary folder."""
    with _written():
        folder = tempfile.TemporaryDirectory(prefix="minichat-quality-")
    with folder:
        yield Path(folder.name)


@contextmanager
def _written() -> Iterator[None]:
    """Report that the temporary folder has no room."""
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise EngineError(
            f"cannot store log probabilities: {why}; set TMPDIR to a folder with room"
        ) from None


def _config(config: EngineConfig, choice: SchemePair) -> EngineConfig:
    return replace(config, quantization=choice.weights, kv_scheme=choice.cache, prefix_cache=False)


def _ids(engine: Engine, text: str, most: int) -> list[int]:
    ids = list(engine.tokenizer.encode(text))[: most + 1]
    if len(ids) < 2:
        raise BadInput(
            f"the text has {len(ids)} tokens; use at least 2, or several hundred for a reliable result"
        )
    return ids


def _row(
    name: str, engine: Engine, ids: Sequence[int], reference: Path, loaded: float, *, speed: bool
) -> QualityRow:
    runner = _runner(engine)
    score = _score(runner, ids, reference)
    speeds = _speeds(engine, ids) if speed else {}
    return QualityRow(
        name,
        score.perplexity,
        score.kl,
        score.top1,
        runner.memory()["weights"],
        sum(each for _, each in runner.store.read_per_token()),
        loaded,
        **speeds,
    )


def _runner(engine: Engine) -> ModelRunner:
    assert isinstance(engine.runner, ModelRunner)
    return engine.runner


def _stretch(runner: ModelRunner) -> int:
    layer = runner.store.layers[0]
    blocks = len(layer.keys) // len(runner.store.groups)
    return min(STRETCH, runner.model.config.max_context, blocks * layer.block_size)


def _reference(engine: Engine, ids: Sequence[int], file: Path) -> Path:
    """Store the unquantized model's log probabilities [tokens, vocab] in a file."""
    runner = _runner(engine)
    with _written(), open(file, "wb") as out:  # a memory map of a full disk would end the process
        out.writelines(found.numpy().tobytes() for found, _ in read(runner, ids, _stretch(runner)))
    return file


def _score(runner: ModelRunner, ids: Sequence[int], reference: Path) -> Score:
    score = Score()
    with open(reference, "rb") as stored:
        for found, following in read(runner, ids, _stretch(runner)):
            theirs = np.fromfile(stored, np.float32, found.numel()).reshape(found.shape)
            score.add(found, torch.from_numpy(theirs), following)
    return score


def _speeds(engine: Engine, ids: Sequence[int]) -> dict[str, float]:
    """Return the speeds, each measured once after a warm-up. Time spent waiting for KV blocks counts."""
    _decode(engine, ids, 1)
    found = {}
    for rows in ROWS:
        ttft, rate = _decode(engine, ids, rows)
        found["tok_s" if rows == 1 else f"tok_s_{rows}"] = rate
        if rows == 1:
            found["ttft_s"] = ttft
    return found


def _decode(engine: Engine, ids: Sequence[int], rows: int) -> tuple[float, float]:
    """Return the seconds until all rows have a first token, and the tokens per second after that."""
    length = min(PROMPT, engine.limits.context // 2)
    reply = min(REPLY, engine.limits.context - length)
    params = SamplingParams(temperature=0, max_tokens=reply, ignore_eos=True)
    text = [*ids] * (1 + (length + rows) // len(ids))  # repeat a short text
    began = time.perf_counter()
    sent = [engine.submit(text[row : row + length], params, lambda delta: None) for row in range(rows)]
    requests = [engine.scheduler.requests[id] for id in sent]
    while not all(request.generated for request in requests):
        engine.step()
    first, before = time.perf_counter(), sum(request.generated for request in requests)
    while engine.busy:
        engine.step()
    made = sum(request.generated for request in requests) - before
    return first - began, made / max(time.perf_counter() - first, 1e-9)
