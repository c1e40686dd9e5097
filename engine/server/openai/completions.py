"""POST /v1/completions."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from engine.events import Delta, TokenLogprob
from engine.host.prompts import Prompt
from engine.server.connection import key_of, state_of
from engine.server.limits import read_json
from engine.server.openai.answer import (
    Head,
    answer,
    begun,
    check_choices,
    check_model,
    finish_of,
    usage_record,
)
from engine.server.openai.logprobs import CompletionLogprobs, Pieces
from engine.server.openai.schema import STREAM, CompletionRequest, openapi_answers, openapi_body, parsed
from engine.server.run import Usage
from engine.server.sse import encoded, quoted

router = APIRouter()

_USUAL_TOKENS = 16  # OpenAI's, where max_tokens is left out


@router.post(
    "/v1/completions",
    openapi_extra=openapi_body(CompletionRequest),
    response_class=Response,
    responses=openapi_answers("application/json", STREAM),
)
async def complete(request: Request) -> Response:
    """How texts go on."""
    state = state_of(request)
    asked = parsed(CompletionRequest, await read_json(request))
    check_model(asked, state)
    prompts = _prompts(asked.prompt)
    choices = check_choices(len(prompts), asked)
    params = asked.sampling(logprobs=asked.logprobs, max_tokens=asked.max_tokens or _USUAL_TOKENS)
    run = await begun(state, key_of(request), prompts, params, asked)
    pieces = state.host.pieces if asked.logprobs is not None else None
    usage = bool(asked.stream_options and asked.stream_options.include_usage)
    form = _TextForm(Head(state.config.name, "cmpl"), len(prompts) * choices, pieces, usage)
    return await answer(request, run, form, asked)


def _prompts(given: str | list[str] | list[int] | list[list[int]]) -> list[Prompt]:
    """One text or list of ids, or several of them."""
    if isinstance(given, list) and not isinstance(given[0], int):
        return list(given)
    return [given]


class _Choice:
    def __init__(self, pieces: Pieces | None) -> None:
        self.text: list[str] = []
        self.entries: list[TokenLogprob] = []
        self.logprobs = CompletionLogprobs(pieces) if pieces else None
        self.finish: str | None = None


class _TextForm:
    """Chunks and whole answers of this route."""

    def __init__(self, head: Head, choices: int, pieces: Pieces | None, usage: bool) -> None:
        self._head = head
        self._choices = [_Choice(pieces) for _ in range(choices)]
        start = {"id": head.id, "object": "text_completion", "created": head.created, "model": head.model}
        self._start = b"data: " + encoded(start)[:-1] + b',"choices":['
        self._end = b'],"usage":null}\n\n' if usage else b"]}\n\n"

    def chunk(self, choice: int, deltas: Sequence[Delta]) -> bytes:
        last, one = deltas[-1], self._choices[choice]
        text = last.text if len(deltas) == 1 else "".join([delta.text for delta in deltas])
        finish = finish_of(last)
        entries = [entry for delta in deltas for entry in delta.logprobs]
        if not text and not finish and not (entries and one.logprobs):
            return b""
        return b"".join(
            [
                self._start,
                b'{"index":%d,"text":' % choice,
                quoted(text),
                b',"logprobs":',
                encoded(one.logprobs.record(entries)) if one.logprobs else b"null",
                b',"finish_reason":',
                quoted(finish) if finish else b"null",
                b"}",
                self._end,
            ]
        )

    def usage_chunk(self, usage: Usage) -> bytes:
        return self._start + b'],"usage":' + encoded(usage_record(usage)) + b"}\n\n"

    def take(self, choice: int, deltas: Sequence[Delta]) -> None:
        one = self._choices[choice]
        for delta in deltas:
            one.text.append(delta.text)
            one.entries += delta.logprobs
        one.finish = finish_of(deltas[-1])

    def whole(self, usage: Usage) -> dict[str, Any]:
        head = self._head
        return {
            "id": head.id,
            "object": "text_completion",
            "created": head.created,
            "model": head.model,
            "choices": [
                {
                    "index": index,
                    "text": "".join(one.text),
                    "logprobs": one.logprobs.record(one.entries) if one.logprobs else None,
                    "finish_reason": one.finish,
                }
                for index, one in enumerate(self._choices)
            ],
            "usage": usage_record(usage),
        }
