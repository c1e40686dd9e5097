"""Engines on the ledger with room for requests that outlast their test."""

from typing import Any

import pytest

from engine.api.params import SamplingParams
from engine.host.stream import Stream
from engine.host.thread import EngineThread
from engine.serving.engine import Engine
from tests.engine.ledger import LedgerRunner, ledger_engine

DEPTHS = pytest.mark.parametrize("depth", [0, 1])


def params(count: int = 20, **more: Any) -> SamplingParams:
    return SamplingParams(max_tokens=count, seed=0, **more)


def roomy_engine(depth: int = 0, **how: Any) -> Engine:
    return ledger_engine(**{"blocks": 4096, "context": 60_000, "depth": depth} | how)


def endless(host: EngineThread, first: int = 0) -> Stream:
    """Submit a request that outlasts its test, and wait until it has begun."""
    stream = host.submit([first, 1, 2], params(50_000))
    next(iter(stream))
    return stream


def runner_of(engine: Engine) -> LedgerRunner:
    assert isinstance(engine.runner, LedgerRunner)
    return engine.runner
