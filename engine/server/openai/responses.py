"""The common part of the routes: read the request, submit it, and respond whole or as a stream."""

import time
from collections.abc import AsyncIterator, Container, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol, TypeVar

from fastapi import Request
from fastapi.responses import Response

from engine.api.errors import BadParams
from engine.api.events import Delta
from engine.api.request import Finish
from engine.host.prompts import Prompt
from engine.server.answer import gathered, raise_failed, streamed
from engine.server.generation import Batch, Generation, Usage
from engine.server.http.bodies import read_as
from engine.server.http.connection import key_of, state_of
from engine.server.http.errors import ApiError
from engine.server.http.request_ids import ID
from engine.server.http.sse import DONE, encoded, event, quoted
from engine.server.openai.schema import GenerationRequest
from engine.server.openai.structured import RequestedGrammar, refusal
from engine.server.state import ServerState
from engine.server.token_logprobs import Pieces

A = TypeVar("A", bound=GenerationRequest)

FINISH = {Finish.STOP: "stop", Finish.LENGTH: "length", Finish.ABORTED: "abort"}


class ChoiceWriter(Protocol):
    """Writes the choices of one response in the form of its route."""

    prefix: ClassVar[str]  # of the response's id
    whole: ClassVar[str]  # the "object" field of a whole response
    part: ClassVar[str]  # the "object" field of a chunk

    def begin(self, prompts: Sequence[Sequence[int]], *, with_ids: bool) -> dict[str, Any]:
        """Take the prompts' tokens. Returns the fields of the response that hold them.

        `with_ids`: return token ids, also with the choices.
        """
        ...

    def chunks(self, choice: int, deltas: Sequence[Delta]) -> Sequence[bytes]:
        """Return the deltas of a choice as entries of `choices`, one for each chunk."""
        ...

    def take(self, choice: int, deltas: Sequence[Delta]) -> None:
        """Collect the deltas of a choice for a whole response."""
        ...

    def choices(self) -> list[dict[str, Any]]:
        """Return the collected choices, after the last `take`."""
        ...

    def prompt_fields(self) -> dict[str, Any]:
        """Return the fields of a whole response that describe its prompt, after the last `take`."""
        ...


class ResponseEnvelope:
    """The fields around the choices, in a whole response and in each chunk."""

    def __init__(
        self,
        form: ChoiceWriter,
        body: GenerationRequest,
        id: str,
        model: str,
        fingerprint: str,
        prompts: dict[str, Any],
    ) -> None:
        """`prompts`: fields for the whole response, or for the first chunk."""
        self._form, self._prompts = form, prompts
        self._same = {"created": int(time.time()), "model": model, "system_fingerprint": fingerprint}
        self._id = f"{form.prefix}-{id}"
        options = body.stream_options
        self.with_usage = bool(options and options.include_usage)
        self._continuous = self.with_usage and bool(options and options.continuous_usage_stats)
        self._later = self._opening({})
        self._start = self._opening(prompts) if prompts else self._later
        self._end = b'],"usage":null}\n\n' if self.with_usage else b"]}\n\n"

    def chunk(self, entry: bytes, usage: Usage) -> bytes:
        start, self._start = self._start, self._later
        return start + entry + (self._usage(usage) if self._continuous else self._end)

    def usage_chunk(self, usage: Usage) -> bytes:
        return self._start + self._usage(usage)

    def _usage(self, usage: Usage) -> bytes:
        return b'],"usage":' + encoded(usage.record()) + b"}\n\n"

    def record(self, usage: Usage) -> dict[str, Any]:
        """Return the whole response."""
        choices = self._form.choices()
        head = self._head(self._form.whole)
        fields = {**head, **self._prompts, "choices": choices, "usage": usage.record()}
        return fields | self._form.prompt_fields()

    def _opening(self, prompts: dict[str, Any]) -> bytes:
        return b"data: " + encoded(self._head(self._form.part) | prompts)[:-1] + b',"choices":['

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, **self._same}


async def read_request(request: Request, kind: type[A]) -> tuple[ServerState, A]:
    """Read the request, and check that it is for the served model."""
    state, body = state_of(request), await read_as(request, kind)
    await state.served_name(body.model)
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "stream_options requires stream to be true", param="stream_options")
    if body.prompt_logprobs is not None and body.stream:
        raise ApiError(400, "prompt_logprobs requires stream to be false", param="prompt_logprobs")
    return state, body


async def answer(
    request: Request,
    body: GenerationRequest,
    prompts: Sequence[Prompt],
    form: ChoiceWriter,
    requested: RequestedGrammar | None,
    **more: Any,
) -> Response:
    """Run the prompts and respond.

    `requested`: the grammar of each reply. `more`: sampling parameters that the two routes name differently.
    """
    state, place = state_of(request), requested.place if requested else ""
    fingerprint, name = await state.fingerprint.read(), body.model or state.config.name

    def frame(run: Generation) -> ResponseEnvelope:
        prompt_ids = form.begin(run.prompt_ids, with_ids=bool(body.return_token_ids))
        id = body.request_id or request.scope[ID]
        return ResponseEnvelope(form, body, id, name, fingerprint, prompt_ids)

    with refusing(place):
        begun = begin_run(state, key_of(request), body, prompts, requested, more)
        if body.stream:
            return await streamed(request, begun, lambda run: _events(run, form, frame(run), place))
        return await gathered(request, begun, lambda run: _gathered(run, form, frame(run)))


@contextmanager
def refusing(place: str) -> Iterator[None]:
    """Give the grammar in `place` the client's field name. The route does so with other parameters."""
    try:
        yield
    except BadParams as error:
        if error.field != "grammar":
            raise
        raise refusal(error, place) from None


def begin_run(
    state: ServerState,
    key: bytes,
    body: GenerationRequest,
    prompts: Sequence[Prompt],
    requested: RequestedGrammar | None,
    more: dict[str, Any],
) -> Generation:
    params = body.sampling(grammar=requested and requested.grammar, **more)
    return state.run(
        key,
        prompts,
        params,
        urgency=body.urgency,
        salt=body.cache_salt or "",
        reply_prefix=body.said or (),
        adapter=state.adapter_of(body.model),
        calls=requested and requested.calls,
    ).begin()


async def _events(
    run: Generation, form: ChoiceWriter, frame: ResponseEnvelope, place: str
) -> AsyncIterator[bytes]:
    try:
        async for batch in run:
            entries = [form.chunks(choice, deltas) for choice, deltas in _by_choice(run, batch)]
            if chunk := b"".join([frame.chunk(entry, run.usage) for each in entries for entry in each]):
                yield chunk
            raise_failed(batch)
        end = frame.usage_chunk(run.usage) if frame.with_usage else b""
    except BadParams as error:
        end = event(refusal(error, place).record())
    except ApiError as error:
        end = event(error.record())
    yield end + DONE


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


def shown_pieces(body: GenerationRequest, pieces: Pieces) -> Pieces:
    """Return the function for the names of tokens in logprobs: their texts, or vLLM's form of their ids."""
    if not body.return_tokens_as_token_ids:
        return pieces
    return lambda tokens: [b"token_id:%d" % token for token in tokens]


def finish_of(delta: Delta) -> str | None:
    """Return OpenAI's finish reason, or None if the reply failed, which is reported as an error."""
    return FINISH.get(delta.finish) if delta.finish else None


def stop_reason(delta: Delta, stop_ids: Container[int]) -> str | int | None:
    """Return vLLM's stop reason: the stop string, or the id of `stop_ids`, that ended the reply."""
    if delta.finish is not Finish.STOP:
        return None
    return delta.stop or next((token for token in delta.tokens[-1:] if token in stop_ids), None)


def ended(finish: str | None, reason: str | int | None, score: float | None) -> bytes:
    """Return the JSON after "finish_reason": in a chunk."""
    if finish is None:
        return b"null"
    rest = b"" if score is None else b',"score":%r' % score
    return quoted(finish) + b',"stop_reason":' + encoded(reason) + rest
