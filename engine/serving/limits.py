"""The limits that each request is checked against before it is accepted."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from engine.api.errors import (
    MORE_CONTEXT,
    BadInput,
    BadParams,
    ContextBound,
    QueueFull,
    RequestTooLong,
    outside_vocab,
)
from engine.api.params import SamplingParams
from engine.speculation.speculator import LACKS, WINDOWED


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of an engine and its model."""

    context: int  # tokens that the model, and the whole cache, can hold for one request
    vocab: int
    waiting: int
    stop_ids: frozenset[int] = frozenset()  # end a reply, unless it ignores them
    speculation: tuple[str, ...] = ("ngram", "suffix")  # the kinds available for this model
    windowed: bool = False  # a kv_window or kv_budget bounds what a token sees
    longest: int | None = None  # tokens of a request if the cache had room for them; None: `context`
    chosen: bool = False  # max_context was set

    @property
    def bound(self) -> ContextBound:
        """What limits the context."""
        if self.longest is not None and self.context < self.longest:
            return "blocks"
        return "max_context" if self.chosen else "model"

    def check(
        self,
        rows: int,
        params: SamplingParams,
        prompt: Sequence[int] = (),
        reply_prefix: Sequence[int] = (),
    ) -> None:
        """Raise if a token is outside the model's vocabulary or the search can never fit."""
        if (kind := params.speculate) and kind not in self.speculation:
            why = WINDOWED if kind == "draft" and self.windowed else f"this model {LACKS[kind]}"
            raise BadParams("speculate", f"{kind} is not available: {why}")
        named: dict[str, Collection[int]] = {"prompt": prompt, "said": reply_prefix}
        named["stop_ids"] = params.stop_ids
        named["logit_bias"] = [token for token, _ in params.logit_bias]
        named["allowed_token_ids"] = params.allowed_token_ids or ()
        named["logprob_token_ids"] = params.logprob_token_ids
        for field, ids in named.items():
            if problem := outside_vocab(self.vocab, ids):
                raise BadParams(field, problem)
        if params.min_tokens and len(params.enders(self.stop_ids)) >= self.vocab:
            raise BadParams("stop_ids", f"min_tokens is {params.min_tokens}, but every token ends the reply")
        if params.beams > rows:
            raise BadParams("beams", f"{params.beams} beams need as many rows; this engine runs {rows}")

    def max_len(self, prompt: int, params: SamplingParams) -> int:
        """The maximum token count of a request with this prompt. Raises if it can never fit."""
        context = self.context
        if not prompt:
            raise BadInput("the prompt is empty, and no start token is added to it", field="prompt")
        if prompt >= context:
            raise RequestTooLong(
                f"{prompt:,} tokens; this model takes {context - 1:,}. "
                f"Shorten the prompt or {MORE_CONTEXT[self.bound]}",
                field="prompt",
            )
        if params.max_tokens is None:
            return context
        if prompt + params.max_tokens > context:
            raise RequestTooLong(
                f"{prompt:,} tokens and {params.max_tokens:,} more for the reply; this model takes "
                f"{context:,} in all. Shorten the prompt or lower max_tokens to {context - prompt}",
                field="max_tokens",
            )
        return prompt + max(params.max_tokens, 1)  # without a reply, the last step's token is dropped

    def check_queue(self, waiting: int) -> None:
        if waiting >= self.waiting:
            raise QueueFull(f"the queue is full: {self.waiting} requests are waiting; try again later")


def check_fork(parent: int, beams: int, params: SamplingParams | None) -> None:
    if beams > 1:
        raise BadInput(
            f"request {parent} is a beam search with {beams} beams; "
            "choose another strategy (beams 1) to fork it"
        )
    if params is not None:
        asked = {"prompt_logprobs": params.prompt_logprobs is not None, "pooling": bool(params.pooling)}
        for name in (each for each, given in asked.items() if given):
            raise BadParams(name, "is not available for a fork, which does not read the prompt")


def check_room(what: str, tokens: int, whole: str, most: int, field: str = "") -> None:
    """Raise unless a token is left of those that a reply or a fork may have."""
    if tokens >= most:
        raise RequestTooLong(f"{what} has {tokens} tokens; the {whole} may have {most}", field=field)


def check_order(priority: object, deadline: object) -> None:
    if not isinstance(priority, int) or isinstance(priority, bool) or abs(priority) > 2**31:
        raise BadInput(f"priority must be a whole number, not {priority!r}", field="priority", value=priority)
    if deadline is not None and not (isinstance(deadline, int | float) and math.isfinite(deadline)):
        raise BadInput(
            f"deadline must be seconds from now, not {deadline!r}", field="deadline", value=deadline
        )
