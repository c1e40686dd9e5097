"""The common part of the routes: read the request, submit it, and respond whole or as a stream."""

import secrets
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

from fastapi import Request
from fastapi.responses import Response

from engine.api.errors import BadParams
from engine.api.events import Delta
from engine.api.request import Finish
from engine.host.prompts import Prompt
from engine.server.generation import Batch, Generation, Usage
from engine.server.http.bodies import GONE, read_as
from engine.server.http.connection import key_of, state_of
from engine.server.http.errors import ApiError
from engine.server.http.sse import DONE, EventStream, encoded, event, unless_gone
from engine.server.openai.schema import Asked
from engine.server.openai.structured import RequestedGrammar, refusal
from engine.server.state import ServerState, log

A = TypeVar("A", bound=Asked)

FINISH = {Finish.STOP: "stop", Finish.LENGTH: "length", Finish.ABORTED: "abort"}


class ChoiceWriter(Protocol):
    """Writes the choices of one response in the form of its route."""

    prefix: ClassVar[str]  # of the response's id
    whole: ClassVar[str]  # the "object" field of a whole response
    part: ClassVar[str]  # the "object" field of a chunk

    def chunk(self, choice: int, deltas: Sequence[Delta]) -> bytes:
        """Return the deltas of a choice as an entry of `choices`; empty if there is nothing to send."""
        ...

    def take(self, choice: int, deltas: Sequence[Delta]) -> None:
        """Collect the deltas of a choice for a whole response."""
        ...

    def choices(self) -> list[dict[str, Any]]:
        """Return the collected choices, after the last `take`."""
        ...


class ResponseEnvelope:
    """The fields around the choices, in a whole response and in each chunk."""

    def __init__(self, form: ChoiceWriter, model: str, asked: Asked) -> None:
        self._form, self._model = form, model
        self._id, self._created = f"{form.prefix}-{secrets.token_hex(12)}", int(time.time())
        options = asked.stream_options
        self.with_usage = bool(options and options.include_usage)
        self._continuous = self.with_usage and bool(options and options.continuous_usage_stats)
        self._start = b"data: " + encoded(self._head(form.part))[:-1] + b',"choices":['
        self._end = b'],"usage":null}\n\n' if self.with_usage else b"]}\n\n"

    def chunk(self, entry: bytes, usage: Usage) -> bytes:
        return self._start + entry + (self._usage(usage) if self._continuous else self._end)

    def usage_chunk(self, usage: Usage) -> bytes:
        return self._start + self._usage(usage)

    def _usage(self, usage: Usage) -> bytes:
        return b'],"usage":' + encoded(usage.record()) + b"}\n\n"

    def record(self, usage: Usage) -> dict[str, Any]:
        """Return the whole response."""
        choices = self._form.choices()
        return {**self._head(self._form.whole), "choices": choices, "usage": usage.record()}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}


def check_model(state: ServerState, name: str | None) -> None:
    """Raise an error if a request names another model than the one that is served."""
    if name is not None and name != state.config.name:
        raise ApiError(
            404,
            f"model {name[:80]!r} does not exist; this server serves {state.config.name!r}",
            param="model",
            code="model_not_found",
        )


async def read_request(request: Request, kind: type[A]) -> tuple[ServerState, A]:
    """Read the request, and check that it is for the served model."""
    state, asked = state_of(request), await read_as(request, kind)
    check_model(state, asked.model)
    if asked.stream_options is not None and not asked.stream:
        raise ApiError(400, "stream_options requires stream to be true", param="stream_options")
    return state, asked


async def answer(
    request: Request,
    asked: Asked,
    prompts: Sequence[Prompt],
    form: ChoiceWriter,
    requested: RequestedGrammar | None,
    **more: Any,
) -> Response:
    """Run the prompts and respond.

    `requested`: the grammar of each reply. `more`: sampling parameters that the two routes name differently.
    """
    state, place = state_of(request), requested.place if requested else ""
    if (run := await started(request, asked, prompts, requested, **more)) is None:
        return Response(status_code=GONE)
    frame = ResponseEnvelope(form, state.config.name, asked)
    if asked.stream:
        return EventStream(_events(run, form, frame, place), run.close)
    return await whole_response(request, run, _gathered(run, form, frame), place)


async def started(
    request: Request,
    asked: Asked,
    prompts: Sequence[Prompt],
    requested: RequestedGrammar | None,
    **more: Any,
) -> Generation | None:
    """Submit the prompts. Return None if the client disconnects first."""
    begun = _begun(state_of(request), key_of(request), asked, prompts, requested, more)
    return await unless_gone(request.receive, begun)


async def whole_response(
    request: Request, run: Generation, gathered: Coroutine[Any, Any, dict[str, Any]], place: str
) -> Response:
    """Return what `gathered` collects from the run. `place`: the field that requested a grammar."""
    try:
        whole = await unless_gone(request.receive, gathered)
    except BadParams as error:
        raise refusal(error, place) from None
    finally:
        run.close()
    if whole is None:
        return Response(status_code=GONE)
    return Response(encoded(whole), media_type="application/json")


async def _begun(
    state: ServerState,
    key: bytes,
    asked: Asked,
    prompts: Sequence[Prompt],
    requested: RequestedGrammar | None,
    more: dict[str, Any],
) -> Generation:
    if state.config.log_prompts:
        log.info("prompts: %r", prompts)
    try:
        params = asked.sampling(grammar=requested and requested.grammar, **more)
        run = state.run(key, prompts, params, priority=asked.priority or 0, reply_prefix=asked.said or ())
        return await run.start()
    except BadParams as error:
        raise refusal(error, requested.place if requested else "") from None


async def _events(
    run: Generation, form: ChoiceWriter, frame: ResponseEnvelope, place: str
) -> AsyncIterator[bytes]:
    try:
        async for batch in run:
            entries = [form.chunk(choice, deltas) for choice, deltas in _by_choice(run, batch)]
            if chunk := b"".join([frame.chunk(entry, run.usage) for entry in entries if entry]):
                yield chunk
            raise_failed(batch)
        if frame.with_usage:
            yield frame.usage_chunk(run.usage)
    except BadParams as error:
        yield event(refusal(error, place).record())
    except ApiError as error:
        yield event(error.record())
    yield DONE


async def _gathered(run: Generation, form: ChoiceWriter, frame: ResponseEnvelope) -> dict[str, Any]:
    async for batch in run:
        for choice, deltas in _by_choice(run, batch):
            form.take(choice, deltas)
        raise_failed(batch)
    return frame.record(run.usage)


def _by_choice(run: Generation, batch: Batch) -> Iterator[tuple[int, list[Delta]]]:
    """Yield the deltas by choice. Choices are numbered prompt by prompt."""
    for prompt, deltas in batch:
        first = prompt * run.params.n
        if run.params.n == 1:
            yield first, deltas
            continue
        for choice in sorted({delta.choice for delta in deltas}):
            yield first + choice, [delta for delta in deltas if delta.choice == choice]


def finish_of(delta: Delta) -> str | None:
    """Return OpenAI's finish reason, or None if the reply failed, which is reported as an error."""
    return FINISH.get(delta.finish) if delta.finish else None


def raise_failed(batch: Batch) -> None:
    """Raise an error if a reply failed. A `fault` names the request field that caused it."""
    for delta in (delta for _, deltas in batch for delta in deltas if delta.finish is Finish.FAILED):
        if delta.fault:
            raise BadParams(delta.fault, delta.error)
        raise ApiError(500, delta.error or "the reply failed", code="reply_failed")
