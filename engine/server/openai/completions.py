"""POST /v1/completions."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from fastapi import APIRouter, Request
from fastapi.responses import Response

from engine.api.events import Delta, TokenLogprob
from engine.host.prompts import Prompt, WholePrompt
from engine.server.http.bodies import off_loop
from engine.server.http.sse import encoded, quoted
from engine.server.openai.cutting import cut_prompts
from engine.server.openai.errors import OpenAIRoute
from engine.server.openai.logprobs import CompletionLogprobs
from engine.server.openai.prompt_logprobs import PromptReader
from engine.server.openai.responses import (
    answer,
    ended,
    finish_of,
    read_request,
    shown_pieces,
    stop_reason,
)
from engine.server.openai.schema import CompletionRequest
from engine.server.schema import STREAM, openapi_answers, openapi_body
from engine.server.state import ServerState
from engine.server.token_logprobs import Pieces

Texts = Callable[[Sequence[int]], list[str]]  # the text that each token adds

router = APIRouter(route_class=OpenAIRoute)

_USUAL_TOKENS = 16  # OpenAI's default for max_tokens


@router.post(
    "/v1/completions",
    openapi_extra=openapi_body(CompletionRequest),
    response_class=Response,
    responses=openapi_answers("application/json", STREAM),
)
async def complete(request: Request) -> Response:
    """Continue one or more texts."""
    state, body = await read_request(request, CompletionRequest)
    given, n = _prompts(body.prompt), body.n or 1
    whole = given if body.add_special_tokens is not False else await _without_start(state, given)
    most = _USUAL_TOKENS if body.max_tokens is None else body.max_tokens
    prompts = await cut_prompts(state, body, whole, max(most, len(body.said or ()) + 1))
    shown = given if body.truncate_prompt_tokens is None else prompts
    form = _TextForm(
        shown_pieces(body, state.host.pieces) if body.logprobs is not None else None,
        frozenset(body.stop_token_ids or ()),
        n,
        PromptReader(state.host.pieces, body.prompt_logprobs, n),
        _Echo(shown, state.host.texts, body.logprobs) if body.echo else None,
    )
    return await answer(
        request,
        body,
        prompts,
        form,
        await off_loop(request, body.grammar),
        logprobs=body.logprobs,
        prompt_logprobs=_prompt_logprobs(body),
        max_tokens=most,
    )


def _prompt_logprobs(body: CompletionRequest) -> int | None:
    """Return how many tokens are needed with each of the prompt, for `echo` and for vLLM's field."""
    wanted = (body.prompt_logprobs, body.logprobs if body.echo else None)
    return max((each for each in wanted if each is not None), default=None)


def _prompts(given: str | list[str] | list[int] | list[list[int]]) -> list[WholePrompt]:
    """Return the prompts as a list. `given` is one text or list of ids, or several."""
    if isinstance(given, list) and not isinstance(given[0], int):
        return list(given)
    return [given]


async def _without_start(state: ServerState, prompts: Sequence[WholePrompt]) -> Sequence[WholePrompt]:
    """Return the prompts with the tokens of each text, without the model's start tokens."""
    encode = state.host.tokenizer.encode
    return await state.engine.work(
        lambda: [encode(each) if isinstance(each, str) else each for each in prompts]
    )


class _Echo:
    """The prompts' texts, which precede the replies'."""

    def __init__(self, given: Sequence[Prompt], texts: Texts, most: int | None) -> None:
        """`most`: how many of the likeliest tokens are returned with each."""
        self._given, self._texts, self._most = given, texts, most

    def text(self, prompt: int, ids: Sequence[int]) -> str:
        given = self._given[prompt]
        return given if isinstance(given, str) else "".join(self._texts(ids))

    def logprobs(
        self, logprobs: CompletionLogprobs, ids: Sequence[int], entries: Sequence[TokenLogprob]
    ) -> dict[str, Any]:
        cut = self._most or 0
        if any(len(entry.top) > cut for entry in entries):  # vLLM's field has more
            entries = [entry._replace(top=entry.top[:cut]) for entry in entries]
        return logprobs.echo(ids, self._texts(ids), entries)


class _Choice:
    def __init__(self, pieces: Pieces | None) -> None:
        self.text: list[str] = []
        self.entries: list[TokenLogprob] = []
        self.logprobs = CompletionLogprobs(pieces) if pieces else None
        self.tokens: list[int] = []
        self.begun = False  # whether a chunk with token ids was sent
        self.echoed = False  # whether a chunk with the prompt was sent
        self.finish: str | None = None
        self.stop: str | int | None = None  # what ended the reply
        self.score: float | None = None


class _TextForm:
    """Writes this route's chunks and whole responses."""

    prefix: ClassVar[str] = "cmpl"
    whole: ClassVar[str] = "text_completion"
    part: ClassVar[str] = "text_completion"

    def __init__(
        self,
        pieces: Pieces | None,
        stop_ids: frozenset[int],
        n: int,
        reader: PromptReader,
        echo: _Echo | None,
    ) -> None:
        """`n`: choices per prompt."""
        self._choices = defaultdict[int, _Choice](partial(_Choice, pieces))
        self._stop_ids, self._n, self._reader, self._echo = stop_ids, n, reader, echo
        self._prompts: Sequence[Sequence[int]] = ()
        self._with_ids = False

    def begin(self, prompts: Sequence[Sequence[int]], *, with_ids: bool) -> dict[str, Any]:
        self._prompts, self._with_ids = prompts, with_ids
        return {}

    def prompt_fields(self) -> dict[str, Any]:
        return {}  # each choice has its prompt's

    def chunks(self, choice: int, deltas: Sequence[Delta]) -> Sequence[bytes]:
        last, one = deltas[-1], self._choices[choice]
        text = last.text if len(deltas) == 1 else "".join([delta.text for delta in deltas])
        finish = finish_of(last)
        entries = [entry for delta in deltas for entry in delta.logprobs]
        if self._echo and not one.echoed:
            self._reader.take(choice, deltas)
            if not last.finish and not any(delta.tokens for delta in deltas):
                return ()  # the prompt is being read
            one.echoed = True
            text, logprobs = self._echoed(self._echo, choice, text, entries)
        elif not text and not finish and not (entries and one.logprobs) and not self._with_ids:
            return ()
        else:
            logprobs = one.logprobs.record(entries) if one.logprobs else None
        entry = b"".join(
            [
                b'{"index":%d,"text":' % choice,
                quoted(text),
                b',"logprobs":',
                encoded(logprobs),
                b',"finish_reason":',
                ended(finish, stop_reason(last, self._stop_ids), last.score),
                self._ids(choice, deltas) if self._with_ids else b"}",
            ]
        )
        return (entry,)

    def _echoed(
        self, echo: _Echo, choice: int, text: str, entries: Sequence[TokenLogprob]
    ) -> tuple[str, dict[str, Any] | None]:
        """Return a choice's text and log-probabilities with its prompt before them."""
        prompt = choice // self._n
        ids, logprobs = self._prompts[prompt], self._choices[choice].logprobs
        text = echo.text(prompt, ids) + text
        if logprobs is None:
            return text, None
        before = echo.logprobs(logprobs, ids, self._reader.entries(choice))
        after = logprobs.record(entries)
        return text, {name: before[name] + after[name] for name in before}

    def _ids(self, choice: int, deltas: Sequence[Delta]) -> bytes:
        """Return the end of a chunk's entry, with the choice's new tokens; its prompt's come once."""
        one = self._choices[choice]
        ids: dict[str, Any] = {"token_ids": [token for delta in deltas for token in delta.tokens]}
        if not one.begun:
            one.begun, ids["prompt_token_ids"] = True, self._prompts[choice // self._n]
        return b"," + encoded(ids)[1:]

    def take(self, choice: int, deltas: Sequence[Delta]) -> None:
        one = self._choices[choice]
        self._reader.take(choice, deltas)
        for delta in deltas:
            one.text.append(delta.text)
            one.entries += delta.logprobs
            one.tokens += delta.tokens
        one.stop = stop_reason(deltas[-1], self._stop_ids)
        one.finish, one.score = finish_of(deltas[-1]), deltas[-1].score

    def choices(self) -> list[dict[str, Any]]:
        return [self._choice(n, one) for n, one in sorted(self._choices.items())]

    def _choice(self, index: int, one: _Choice) -> dict[str, Any]:
        text = "".join(one.text)
        if self._echo:
            text, logprobs = self._echoed(self._echo, index, text, one.entries)
        else:
            logprobs = one.logprobs.record(one.entries) if one.logprobs else None
        whole = {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": one.finish,
            "stop_reason": one.stop,
            **self._reader.fields(index),
        }
        if self._with_ids:
            whole |= {"token_ids": one.tokens, "prompt_token_ids": self._prompts[index // self._n]}
        return whole if one.score is None else whole | {"score": one.score}
