"""The model under test, its engines, and the sizes of the workloads."""

import gc
import json
import random
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from engine.api.config import EngineConfig
from engine.devices import pick
from engine.models.find import find_model
from engine.serving.engine import Engine
from engine.start import start
from minichat.bench.shapes import COMMON, SHAPES

_ALIVE = 3  # engines; older ones are dropped


@dataclass(kw_only=True)
class Setup:
    """What the questions measure. Sizes that are not given depend on the device."""

    config: EngineConfig
    shape: str = ""  # of SHAPES: random weights instead of the model in `config`
    rows: tuple[int, ...] = ()  # replies at once; empty: the question's own
    prompt: int | None = None  # tokens
    reply: int | None = None
    requests: int | None = None
    trace: str = "poisson"  # or a file
    ttft: float = 0.5  # limits of goodput, in seconds
    tpot: float = 0.05
    price: float | None = None  # of the machine, for an hour
    threads: int = 1  # of each engine that is compared with a peer on a CPU
    peers: Mapping[str, str] = field(default_factory=dict)  # the Python of a peer, by its name
    _engines: dict[str, Engine] = field(default_factory=dict)

    def __post_init__(self) -> None:
        small, large = (128, 48, 24), (512, 256, 256)
        usual = large if self.gpu else small
        self.prompt, self.reply, self.requests = (
            each if given is None else given
            for given, each in zip((self.prompt, self.reply, self.requests), usual, strict=True)
        )

    @cached_property
    def gpu(self) -> bool:
        return pick(self.config.device).type == "cuda"

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Tokens of a prompt, tokens of a reply, and requests of a mixed workload."""
        assert self.prompt is not None and self.reply is not None and self.requests is not None
        return self.prompt, self.reply, self.requests

    @property
    def settings(self) -> dict[str, Any]:
        """All that a figure depends on, for its line in a file; without paths of this machine."""
        config = self.config
        prompt, reply, requests = self.sizes
        return {
            "model": self.shape or Path(config.model).name,
            "device": pick(config.device).type,
            "dtype": config.dtype,
            "quantization": config.quantization,
            "kv": config.kv_scheme,
            "rows": list(self.rows),
            "prompt": prompt,
            "reply": reply,
            "requests": requests,
            "trace": Path(self.trace).name,
            "limits": [self.ttft, self.tpot],
            "price": self.price,
            "threads": self.threads,
        }

    def mixed(self, per_second: float = 0.0) -> list[tuple[float, int, int]]:
        """Requests of mixed lengths: when each arrives, tokens of its prompt, tokens of its reply."""
        draw, at, found = random.Random(0), 0.0, []
        prompt, reply, requests = self.sizes
        for _ in range(requests):
            found.append((at, draw.randint(-(-prompt // 8), prompt), draw.randint(-(-reply // 8), reply)))
            at += draw.expovariate(per_second) if per_second else 0.0
        return found

    def rows_or(self, small: tuple[int, ...], large: tuple[int, ...]) -> tuple[int, ...]:
        """The rows that were asked for, else the usual ones of a CPU or a GPU."""
        return self.rows or (large if self.gpu else small)

    def engine(self, **changes: Any) -> Engine:
        """An engine with the usual options, except for these. The same changes give the same engine."""
        key = repr(sorted(changes.items()))
        engine = self._engines.pop(key, None)
        if engine is None:
            while len(self._engines) >= _ALIVE:
                self._drop(next(iter(self._engines)))
            engine = self._started({"blocks": self._blocks, "host_blocks": 0, "seed": 0, **changes})
        self._engines[key] = engine  # the newest is the last
        return engine

    def close(self) -> None:
        for key in list(self._engines):
            self._drop(key)

    @property
    def _blocks(self) -> int:
        """For the most rows of any case, and a long prompt."""
        prompt, reply, requests = self.sizes
        size = self.config.block_size
        rows = max(requests, *self.rows, *(() if self.rows else (256,)))
        return self.config.blocks or rows * (-(-(prompt + reply) // size) + 1) + 4096 // size

    def _started(self, changes: dict[str, Any]) -> Engine:
        config = replace(self.config, **changes)
        if not self.shape:
            return start(config)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(COMMON | SHAPES[self.shape]))
            return start(replace(config, model=folder, dummy_weights=True))

    def _drop(self, key: str) -> None:
        del self._engines[key]
        gc.collect()
        if self.gpu:
            torch.cuda.empty_cache()

    @cached_property
    def folder(self) -> Path:
        """The model's folder. Peers need one with all weights, so a shape has none."""
        return find_model(self.config.model, dummy=self.config.dummy_weights).folder
