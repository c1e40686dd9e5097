"""POST /v1/responses."""

import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from engine.api.errors import BadParams
from engine.api.request import Finish
from engine.server.answer import gathered, raise_failed, streamed
from engine.server.generation import Batch, Generation
from engine.server.http.bodies import off_loop
from engine.server.http.connection import key_of
from engine.server.http.errors import ApiError
from engine.server.http.request_ids import ID
from engine.server.http.sse import event
from engine.server.openai.chat import prepared
from engine.server.openai.errors import ResponsesRoute
from engine.server.openai.responses import begin_run, read_request, refusing, shown_pieces
from engine.server.openai.responses_api.logprobs import MessageLogprobs
from engine.server.openai.responses_api.output import Event, ResponseOutput
from engine.server.openai.responses_api.schema import ResponsesRequest
from engine.server.openai.structured import refusal
from engine.server.schema import STREAM, openapi_answers, openapi_body

router = APIRouter(route_class=ResponsesRoute)


@router.post(
    "/v1/responses",
    openapi_extra=openapi_body(ResponsesRequest),
    response_class=Response,
    responses=openapi_answers("application/json", STREAM),
)
async def respond(request: Request) -> Response:
    """Create a response to a conversation."""
    state, body = await read_request(request, ResponsesRequest)
    body.refuse_unsupported()
    ready = await prepared(request, state, await off_loop(request, body.chat))
    more = {"max_tokens": body.max_output_tokens, "logprobs": body.logprobs}
    place = ready.requested.place if ready.requested else ""

    def reply_to(run: Generation) -> _Reply:
        pieces, wanted = state.host.pieces, body.logprobs is not None
        logprobs = MessageLogprobs(pieces, shown_pieces(body, pieces)) if wanted else None
        output, id = ResponseOutput(ready.writer(), logprobs), body.request_id or request.scope[ID]
        return _Reply(body, body.model or state.config.name, id, run, output)

    with refusing(place):
        begun = begin_run(state, key_of(request), body, [ready.conversation], ready.requested, more)
        if body.stream:
            return await streamed(request, begun, lambda run: _events(run, reply_to(run), place))
        return await gathered(request, begun, lambda run: _gathered(run, reply_to(run)))


class _Reply:
    """The response object, and the numbered events that report it."""

    def __init__(
        self, body: ResponsesRequest, model: str, id: str, run: Generation, output: ResponseOutput
    ) -> None:
        self._run, self._output, self._sent = run, output, 0
        head = {"id": f"resp_{id}", "object": "response", "created_at": int(time.time())}
        self._head = {**head, "model": model, **_echo(body, run)}

    def take(self, batch: Batch) -> None:
        """Collect the deltas for a whole response."""
        deque(self._changes(batch), maxlen=0)

    def push(self, batch: Batch) -> bytes:
        """Return the events for the deltas."""
        return self._encoded(self._changes(batch))

    def begun(self) -> bytes:
        events = ((name, {"response": self.record("in_progress")}) for name in ("created", "in_progress"))
        return self._encoded(events)

    def ended(self) -> bytes:
        response = self.result()
        return self._encoded([(response["status"], {"response": response})])

    def failed(self, error: ApiError) -> bytes:
        self._output.stop()
        response = self.record("failed", error=_failure(error))
        return self._encoded([("failed", {"response": response})])

    def result(self) -> dict[str, Any]:
        """Return the response after its last delta."""
        match self._output.finish:
            case Finish.LENGTH:
                return self.record("incomplete", incomplete_details={"reason": "max_output_tokens"})
            case Finish.ABORTED:
                return self.record(
                    "failed", error={"code": "server_error", "message": "the reply was aborted"}
                )
        return self.record("completed", completed_at=int(time.time()))

    def record(self, status: str, **more: Any) -> dict[str, Any]:
        usage = None if status == "in_progress" else self._usage()
        usual = {"error": None, "incomplete_details": None, "usage": usage}
        return {**self._head, **usual, "status": status, "output": self._output.items, **more}

    def _changes(self, batch: Batch) -> Iterator[Event]:
        [(_, deltas)] = batch
        return self._output.push(deltas)

    def _usage(self) -> dict[str, Any]:
        usage = self._run.usage
        return {
            "input_tokens": usage.prompt,
            "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
            "output_tokens": usage.completion,
            "output_tokens_details": {"reasoning_tokens": self._output.reasoning_tokens},
            "total_tokens": usage.prompt + usage.completion,
        }

    def _encoded(self, events: Iterable[Event]) -> bytes:
        return b"".join([self._event(f"response.{name}", fields) for name, fields in events])

    def _event(self, kind: str, fields: dict[str, Any]) -> bytes:
        number, self._sent = self._sent, self._sent + 1
        return event({"type": kind, "sequence_number": number, **fields}, kind)


def _echo(body: ResponsesRequest, run: Generation) -> dict[str, Any]:
    """Return the request's parameters, with defaults for those that were left out."""
    usual: dict[str, Any] = {
        "instructions": None,
        "max_output_tokens": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "prompt_cache_key": None,
        "service_tier": "default",
        "text": {},
        "tool_choice": "auto",
        "top_logprobs": 0,
        "truncation": "disabled",
        "user": None,
    }
    given = body.model_dump(by_alias=True, exclude_none=True, include={*usual})
    echo = {name: given.get(name, value) for name, value in usual.items()}
    echo["text"] = {"format": {"type": "text"}, **echo["text"]}
    echo["tools"] = [{"parameters": None, "strict": False, **tool} for tool in body.tools or ()]
    params = run.params
    return echo | {
        "background": False,
        "store": False,
        "temperature": params.temperature,
        "top_p": params.top_p,
    }


def _failure(error: ApiError) -> dict[str, Any]:
    code = "server_error" if error.status >= 500 else "invalid_prompt"
    return {"code": code, "message": str(error), "param": error.param}


async def _events(run: Generation, reply: _Reply, place: str) -> AsyncIterator[bytes]:
    yield reply.begun()
    try:
        async for batch in run:
            if chunk := reply.push(batch):
                yield chunk
            raise_failed(batch)
        yield reply.ended()
    except BadParams as error:
        yield reply.failed(refusal(error, place))
    except ApiError as error:
        yield reply.failed(error)


async def _gathered(run: Generation, reply: _Reply) -> dict[str, Any]:
    async for batch in run:
        reply.take(batch)
        raise_failed(batch)
    return reply.result()
