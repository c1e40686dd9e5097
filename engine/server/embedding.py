"""Vectors of texts: hidden states of prompts, which the engine pools and this module normalizes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.api.params import SamplingParams
from engine.host.prompts import Prompt
from engine.server.answer import raise_failed
from engine.server.config import MAX_CHOICES
from engine.server.http.errors import ApiError
from engine.server.state import ServerState
from engine.server.urgency import USUAL, Urgency


@dataclass(frozen=True, slots=True)
class Embedded:
    """The vectors of some prompts, each of length 1."""

    vectors: Sequence[np.ndarray]  # float32
    tokens: int  # of all prompts
    cached: int  # of these, found in the prefix cache


async def embed(
    state: ServerState,
    key: bytes,
    prompts: Sequence[Prompt],
    *,
    pooling: str,
    dimensions: int | None = None,
    urgency: Urgency = USUAL,
) -> Embedded:
    """Compute the prompts' vectors, as many prompts at a time as one response may have choices."""
    params = SamplingParams(max_tokens=0, pooling=pooling)
    pooled, tokens, cached = list[bytes](), 0, 0
    for at in range(0, len(prompts), MAX_CHOICES):
        group, found = prompts[at : at + MAX_CHOICES], dict[int, bytes]()
        run = state.run(key, group, params, urgency=urgency)
        try:
            await run.start()
            async for batch in run:
                raise_failed(batch)
                for prompt, deltas in batch:
                    found[prompt] = found.get(prompt, b"") + b"".join(delta.pooled for delta in deltas)
        finally:
            run.close()
        if not all(found.values()):
            raise ApiError(503, "the request was aborted", code="aborted")
        pooled += [found[prompt] for prompt in range(len(group))]
        tokens, cached = tokens + run.usage.prompt, cached + run.usage.cached
    return Embedded([unit_vector(each, dimensions) for each in pooled], tokens, cached)


def unit_vector(pooled: bytes, dimensions: int | None = None) -> np.ndarray:
    """Return the first `dimensions` numbers of a pooled hidden state, scaled to length 1."""
    vector = np.frombuffer(pooled, "<f4")
    if dimensions is not None and dimensions > len(vector):
        problem = f"dimensions must be at most {len(vector)} for this model, got {dimensions}"
        raise ApiError(400, problem, param="dimensions")
    vector = vector[:dimensions]
    length = np.linalg.norm(vector.astype(np.float64))
    return (vector / length if length else vector).astype("<f4")
