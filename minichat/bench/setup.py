"""The model under test, its engines, and the sizes of the workloads."""

import gc
import json
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import torch

from engine.api.config import EngineConfig
from engine.devices import pick
from engine.models.config_json import config_fields
from engine.models.find import find_model
from engine.serving.engine import Engine
from engine.start import start
from minichat.bench.shapes import COMMON, SHAPES
from minichat.bench.traffic import prompts
from minichat.bench.written import write

_N = (100, 1024)  # lengths of N, the usual mixed workload on a GPU
_ALIVE = 2  # engines; older ones are dropped, as a GPU holds few
_OPTIONS = {  # options of `minichat serve` that affect speed, and their fields of EngineConfig
    "--device": "device",
    "--dtype": "dtype",
    "--quantization": "quantization",
    "--kv": "kv_scheme",
    "--attention": "attention",
    "--policy": "policy",
    "--target-ms": "latency_target",
    "--max-slowdown": "max_slowdown",
    "--tp": "tp",
    "--pp": "pp",
    "--blocks": "blocks",
    "--kv-host": "kv_host",
    "--max-context": "max_context",
    "--kv-window": "kv_window",
    "--kv-budget": "kv_budget",
    "--kv-eviction": "kv_eviction",
    "--kv-sinks": "kv_sinks",
    "--kv-disk": "kv_disk",
    "--draft": "draft",
}
_PLACES = ("kv_disk", "draft")  # without their folders in the settings
_NAMED = ("device", "dtype", "quantization", "kv_scheme")  # always in the settings of a line


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
    _seeds: Iterator[int] = field(default_factory=count)
    _engines: dict[str, Engine] = field(default_factory=dict)
    _folders: list[tempfile.TemporaryDirectory[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        small, large = (128, 48, 24), (512, 272, 256)
        usual = large if self.gpu else small
        self._as_usual = self.prompt is None and self.reply is None
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
    def longest(self) -> int:
        """Tokens of the longest request of these sizes, with its reply."""
        prompt, reply, _ = self.sizes
        return max(prompt + reply, *(asked + answered for _, asked, answered in self.mixed()))

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
            "prompt": prompt,
            "reply": reply,
            "requests": requests,
            "trace": Path(self.trace).name,
            "limits": [self.ttft, self.tpot],
            "price": self.price,
            "threads": self.threads,
            **{
                field: Path(value).name if field in _PLACES else value
                for field, value in self._changed.items()
                if field not in _NAMED
            },
        }

    @property
    def server_options(self) -> list[str]:
        """Options with which `minichat serve` runs the same model with the same engine."""
        config = self.config
        dummy = ["--dummy-weights"] if config.dummy_weights else []
        changes = dict(self._changed)
        if (target := changes.get("latency_target")) is not None:
            changes["latency_target"] = 1000 * target
        changed = [(option, changes.get(field)) for option, field in _OPTIONS.items()]
        given = [word for option, value in changed if value is not None for word in (option, str(value))]
        return ["--model", config.model, *dummy, *given]

    @property
    def _changed(self) -> dict[str, Any]:
        """The fields of the engine's options that differ from the default."""
        usual = EngineConfig(model=self.config.model)
        values = {field: getattr(self.config, field) for field in _OPTIONS.values()}
        return {field: value for field, value in values.items() if value != getattr(usual, field)}

    @cached_property
    def vocab(self) -> int:
        return self._of_model("vocab_size")

    @cached_property
    def most(self) -> int:
        """Tokens that a request can have, with its reply, if the configuration says so."""
        return self.config.max_context or self._of_model("max_position_embeddings") or sys.maxsize

    def _of_model(self, name: str) -> int:
        if self.shape:
            return int(SHAPES[self.shape][name])
        config = config_fields(self.folder).values
        return int(config.get(name) or config.get("text_config", {}).get(name, 0))

    def ids(self, seed: int | None = None, vocab: int | None = None) -> Iterator[int]:
        """Endless random tokens. Without a seed they are new at each call, so no prefix cache holds them."""
        return prompts(next(self._seeds) if seed is None else seed, vocab or self.vocab)

    def mixed(self, per_second: float = 0.0) -> list[tuple[float, int, int]]:
        """Requests of mixed lengths: when each arrives, tokens of its prompt, tokens of its reply."""
        draw, at, found = random.Random(0), 0.0, []
        prompt, reply, requests = self.sizes
        asked, answered = (-(-prompt // 8), prompt), (-(-reply // 8), reply)
        if self.gpu and self._as_usual:
            asked = answered = _N
        for _ in range(requests):
            found.append((at, draw.randint(*asked), draw.randint(*answered)))
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
            engine = self._started(changes)
        self._engines[key] = engine  # the newest is the last
        return engine

    @contextmanager
    def served(self) -> Iterator[Engine]:
        """An engine with the cache that a server would have. It is alone: the cache may take all memory."""
        self.drop_engines()
        yield self.engine(blocks=self.config.blocks)
        self.drop_engines()

    def drop_engines(self) -> None:
        for key in list(self._engines):
            self._drop(key)

    def close(self) -> None:
        self.drop_engines()
        for folder in self._folders:
            folder.cleanup()

    @property
    def _blocks(self) -> int:
        """For the most rows of any case, for all mixed requests at once, and for long prompts."""
        prompt, reply, _ = self.sizes
        size = self.config.block_size
        rows = max(self.rows, default=256) * (-(-(prompt + reply) // size) + 1)
        mixed = sum(-(-(asked + answered) // size) + 1 for _, asked, answered in self.mixed())
        return self.config.blocks or max(rows, mixed) + 10 * (8 * prompt + reply) // size

    def _started(self, changes: dict[str, Any]) -> Engine:
        return self.shaped(self.shape, **changes) if self.shape else start(self._config(changes))

    def shaped(self, shape: str, **changes: Any) -> Engine:
        """A new engine with random weights in this shape."""
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(COMMON | SHAPES[shape]))
            return start(self._config({"model": folder, "dummy_weights": True, **changes}))

    def _config(self, changes: dict[str, Any]) -> EngineConfig:
        """A cache of the size that is needed: several engines are alive. No tier, unless asked for."""
        usual: dict[str, Any] = {"blocks": self._blocks, "seed": 0}
        if self.config.kv_host is None or "host_blocks" in changes:
            usual |= {"host_blocks": self.config.host_blocks or 0, "kv_host": None}
        return replace(self.config, **(usual | changes))

    def _drop(self, key: str) -> None:
        self._engines.pop(key).close()
        gc.collect()
        if self.gpu:
            torch.cuda.empty_cache()

    @cached_property
    def folder(self) -> Path:
        """A folder with all weights, as other engines need it. A shape's are written to a temporary one."""
        if not self.shape:
            return find_model(self.config.model, dummy=self.config.dummy_weights).folder
        folder = self._temporary()
        write(folder, COMMON | SHAPES[self.shape])
        return folder

    @cached_property
    def scratch(self) -> Path:
        """A folder for what engines keep on disk."""
        return self._temporary()

    def _temporary(self) -> Path:
        """A folder that `close` removes."""
        self._folders.append(tempfile.TemporaryDirectory())
        return Path(self._folders[-1].name)
