"""vLLM's truncate_prompt_tokens: prompts that are cut to a number of tokens."""

from collections.abc import Sequence
from typing import Literal

from engine.host.prompts import CutPrompt, Prompt, WholePrompt
from engine.server.http.errors import ApiError
from engine.server.openai.schema import CutFields
from engine.server.state import ServerState

_FITS = -1  # as many tokens as the model takes


async def cut_prompts(
    state: ServerState,
    body: CutFields,
    prompts: Sequence[WholePrompt],
    reply: int = 0,
    side: Literal["left", "right"] = "left",
) -> Sequence[Prompt]:
    """Return the prompts, cut as the request asks. `reply`: tokens for which room is left.

    `side`: where they are cut unless the request says so. "left" keeps the last tokens.
    """
    if (most := body.truncate_prompt_tokens) is None:
        return prompts
    fits = (await state.engine.snapshot()).max_context - max(reply, 1)
    if most > fits:
        why = ", which leaves room for the reply" if reply else " for this model"
        problem = f"must be at most {fits}{why}, got {most}"
        raise ApiError(400, f"truncate_prompt_tokens {problem}", param="truncate_prompt_tokens")
    if most == 0:
        problem = "must be at least 1, or -1 for as many as fit, got 0"
        raise ApiError(400, f"truncate_prompt_tokens {problem}", param="truncate_prompt_tokens")
    if most == _FITS and fits < 1:
        return prompts  # refused as too long, with what max_tokens may be
    first = (body.truncation_side or side) == "right"
    most = fits if most == _FITS else most
    return [CutPrompt(each, most, first) for each in prompts]
