"""The body of POST /v1/responses."""

from typing import Any, Literal

from pydantic import ConfigDict, Field

from engine.api.params import MAX_LOGPROBS
from engine.server.http.errors import ApiError
from engine.server.openai.responses_api.conversation import chat_messages, chat_tools
from engine.server.openai.schema import ChatRequest, Count, Effort, FunctionName, GenerationRequest, NamedTool
from engine.server.openai.structured import TextFormat
from engine.server.schema import Messages, Strict

_LOGPROBS = "message.output_text.logprobs"


class TextOptions(Strict):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None  # without effect


class ChosenTool(Strict):
    type: Literal["function"]
    name: str


class ReasoningOptions(Strict):
    """Members other than the effort have no effect."""

    model_config = ConfigDict(extra="allow", strict=True)
    effort: Effort | None = None


class ResponsesRequest(GenerationRequest):
    """The sampling fields are those of a chat."""

    input: str | Messages = Field(min_length=1)
    instructions: str | None = None
    max_output_tokens: Count | None = None
    tools: list[dict[str, Any]] | None = Field(None, max_length=128)
    tool_choice: Literal["auto", "none", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    include: list[str] | None = Field(None, max_length=64)  # only logprobs have an effect
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)

    # Refused with the reason
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    prompt: Any = None

    # Accepted and ignored
    metadata: dict[str, str] | None = None
    store: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    max_tool_calls: Count | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    client_metadata: dict[str, Any] | None = None  # Codex sends it

    # Fields of the other routes that this one does not have
    n: None = None
    best_of: None = None
    prompt_logprobs: None = None
    logprob_token_ids: None = None
    response_format: None = None
    truncate_prompt_tokens: None = None
    truncation_side: None = None

    def refuse_unsupported(self) -> None:
        """Refuse what a server that stores nothing cannot do, and what responses do not have."""
        if self.background:
            problem = "background responses are not supported, because responses are not stored"
            raise ApiError(400, f"background: {problem}", param="background")
        for name in ("previous_response_id", "conversation", "prompt"):
            if getattr(self, name) is not None:
                problem = "this server stores nothing; send the whole conversation in input"
                raise ApiError(400, f"{name}: {problem}", param=name)
        if self.max_tokens is not None:
            raise ApiError(400, "max_tokens is max_output_tokens in this API", param="max_tokens")
        if self.return_token_ids:
            problem = "is not part of responses; use /v1/chat/completions"
            raise ApiError(400, f"return_token_ids {problem}", param="return_token_ids")

    @property
    def logprobs(self) -> int | None:
        """How many of the likeliest tokens are returned with each; None: no log-probabilities."""
        return (self.top_logprobs or 0) if _LOGPROBS in (self.include or ()) else None

    def chat(self) -> ChatRequest:
        """Return the same request as a chat."""
        common = {name: getattr(self, name) for name in GenerationRequest.model_fields}
        choice: Any = self.tool_choice
        if isinstance(choice, ChosenTool):
            choice = NamedTool(type="function", function=FunctionName(name=choice.name))
        return ChatRequest.model_construct(  # every value has been validated
            **common
            | {
                "messages": chat_messages(self.input, self.instructions),
                "tools": chat_tools(self.tools or ()),
                "tool_choice": choice,
                "parallel_tool_calls": self.parallel_tool_calls,
                "response_format": self.text and self.text.format,
                "chat_template_kwargs": self.chat_template_kwargs,
                "reasoning_effort": self.reasoning and self.reasoning.effort,
            }
        )
