"""What both routes do: check the model, hand the request in, and answer whole or as it comes."""

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastapi import Request
from fastapi.responses import Response

from engine.errors import BadParams, EngineError
from engine.events import Delta
from engine.host.prompts import Prompt
from engine.params import SamplingParams
from engine.request import Finish
from engine.server.config import MAX_CHOICES
from engine.server.openai.errors import ApiError, from_engine
from engine.server.openai.schema import Asked
from engine.server.run import Run, Usage
from engine.server.sse import DONE, EventStream, encoded, unless_gone
from engine.server.state import State, log

FINISH = {Finish.STOP: "stop", Finish.LENGTH: "length", Finish.ABORTED: "abort"}


class Form(Protocol):
    """How one route says things. One object an answer."""

    def chunk(self, choice: int, deltas: Sequence[Delta]) -> bytes:
        """The events for what a choice has said."""
        ...

    def usage_chunk(self, usage: Usage) -> bytes: ...

    def whole(self, usage: Usage) -> dict[str, Any]:
        """After all was taken."""
        ...

    def take(self, choice: int, deltas: Sequence[Delta]) -> None:
        """For a whole answer."""
        ...


@dataclass(slots=True)
class Head:
    """What every part of an answer begins with."""

    model: str
    prefix: str
    id: str = field(init=False)
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.id = f"{self.prefix}-{secrets.token_hex(12)}"


def check_model(asked: Asked, state: State) -> None:
    if asked.model is not None and asked.model != state.config.name:
        raise ApiError(
            404,
            f"there is no model {asked.model[:80]!r} here, but {state.config.name!r}",
            param="model",
            code="model_not_found",
        )


def check_choices(prompts: int, asked: Asked) -> int:
    n = asked.n or 1
    if prompts * n > MAX_CHOICES:
        raise ApiError(400, f"{prompts} prompts of n={n} are more than {MAX_CHOICES} choices", param="n")
    return n


async def begun(
    state: State, key: bytes, prompts: Sequence[Prompt], params: SamplingParams, asked: Asked
) -> Run:
    choices = check_choices(len(prompts), asked)
    run = state.run(key, prompts, params, choices=choices, priority=asked.priority or 0)
    if state.config.log_prompts:
        log.info("prompts: %r", prompts)
    try:
        return await run.start()
    except BadParams as error:
        raise wanted.refusal(error) if (wanted := asked.grammar()) else error from None


async def answer(request: Request, run: Run, form: Form, asked: Asked) -> Response:
    if asked.stream:
        with_usage = bool(asked.stream_options and asked.stream_options.include_usage)
        return EventStream(_events(run, form, with_usage), run.close)
    try:
        whole = await unless_gone(request.receive, _gathered(run, form))
    finally:
        run.close()
    if whole is None:
        return Response(status_code=499)  # nobody is there to read it
    return Response(encoded(whole), media_type="application/json")


async def _events(run: Run, form: Form, with_usage: bool) -> AsyncIterator[bytes]:
    try:
        async for batch in run:
            if chunk := b"".join([form.chunk(choice, deltas) for choice, deltas in batch]):
                yield chunk
        if with_usage:
            yield form.usage_chunk(run.usage)
    except ApiError as error:
        yield b"data: " + error.body() + b"\n\n"
    except EngineError as error:  # of a choice that was handed in late
        yield b"data: " + from_engine(error).body() + b"\n\n"
    yield DONE


async def _gathered(run: Run, form: Form) -> dict[str, Any]:
    async for batch in run:
        for choice, deltas in batch:
            form.take(choice, deltas)
    return form.whole(run.usage)


def finish_of(delta: Delta) -> str | None:
    """The reason in OpenAI's words; a reply that failed is an error."""
    if delta.finish is Finish.FAILED:
        raise ApiError(500, delta.error or "the reply failed", code="reply_failed")
    return FINISH[delta.finish] if delta.finish else None


def usage_record(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }
