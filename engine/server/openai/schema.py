"""The request bodies, field by field. A field that is not listed is an error that names it."""

from typing import Annotated, Any, Literal

from pydantic import Field

from engine.api.errors import BadParams
from engine.api.params import (
    MAX_ALLOWED,
    MAX_BAD_WORD,
    MAX_BAD_WORDS,
    MAX_BEAMS,
    MAX_BIASED,
    MAX_DRAFT,
    MAX_LOGPROB_IDS,
    MAX_LOGPROBS,
    MAX_STOPS,
    SamplingParams,
)
from engine.server.config import MAX_CHOICES
from engine.server.openai.structured import (
    GUIDED,
    Choices,
    Expression,
    RequestedGrammar,
    ResponseFormat,
    Schema,
    StructuredOutputs,
    requested_grammar,
)
from engine.server.schema import MAX_REPLY_PREFIX, Messages, Ordered, Sparse, Strict, TokenIds

MAX_DOCUMENTS = 1024
Text = Annotated[str, Field(min_length=1)]
BadWords = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MAX_BAD_WORD)]], Field(max_length=MAX_BAD_WORDS)
]
Count = Annotated[int, Field(ge=1, lt=2**31)]


class StreamOptions(Strict):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # vLLM's: with include_usage, also in each chunk
    include_obfuscation: bool | None = None  # harmless: there is no padding


class FunctionName(Strict):
    name: str


class NamedTool(Strict):
    type: Literal["function"]
    function: FunctionName


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class CutFields(Strict):
    """vLLM's fields for prompts that are too long."""

    truncate_prompt_tokens: int | None = Field(None, ge=-1, lt=2**63)
    truncation_side: Literal["left", "right"] | None = None


class GenerationRequest(Sparse, Ordered, CutFields):
    """The fields of both routes."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)

    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = Field(
        None, max_length=MAX_BIASED, json_schema_extra={"propertyNames": {"pattern": "^[0-9]{1,9}$"}}
    )
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: Text | Annotated[list[Text], Field(max_length=MAX_STOPS)] | None = None
    max_tokens: Count | None = None

    # vLLM's extensions
    top_k: int | None = Field(None, ge=-1, lt=2**31)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, ge=0.01, le=100)
    ignore_eos: bool | None = None
    min_tokens: int | None = Field(None, ge=0, lt=2**31)
    stop_token_ids: TokenIds | None = Field(None, max_length=1024)
    best_of: int | None = Field(None, ge=1, le=MAX_CHOICES)
    use_beam_search: bool | None = None
    length_penalty: float | None = Field(None, ge=-10, le=10)
    skip_special_tokens: Literal[True] | None = None
    include_stop_str_in_output: bool | None = None
    return_token_ids: bool | None = None
    prompt_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    logprob_token_ids: TokenIds | None = Field(None, max_length=MAX_LOGPROB_IDS)
    allowed_token_ids: TokenIds | None = Field(None, min_length=1, max_length=MAX_ALLOWED)
    bad_words: BadWords | None = None
    structured_outputs: StructuredOutputs | None = None
    disable_any_whitespace: bool | None = None  # false: JSON may have any white space
    guided_json: Schema | str | None = None
    guided_regex: Expression | None = None
    guided_choice: Choices | None = None
    guided_grammar: Expression | None = None

    # Names of transformers
    num_beams: int | None = Field(None, ge=1, le=MAX_BEAMS)
    early_stopping: bool | Literal["never"] | None = None

    # minichat's own
    speculate: str | None = None
    draft_tokens: int | None = Field(None, ge=0, le=MAX_DRAFT)
    said: TokenIds | None = Field(None, max_length=MAX_REPLY_PREFIX)

    # vLLM's, around the reply
    cache_salt: str | None = Field(None, min_length=1, max_length=1024)
    request_id: str | None = Field(None, pattern=r"^[\w.:=+/-]{1,128}$")
    return_tokens_as_token_ids: bool | None = None

    response_format: ResponseFormat | None = None

    # Accepted and ignored
    user: str | None = None
    session_id: str | None = None
    spaces_between_special_tokens: bool | None = None

    def sampling(self, **more: Any) -> SamplingParams:
        """Return the engine's sampling parameters."""
        given = {name: getattr(self, name) for name in self.model_fields_set & _SAME}
        given |= {"stop_ids": self.stop_token_ids, "logit_bias": self._biases(), "beams": self._beams()}
        given |= more
        if self.top_k is not None:
            given["top_k"] = max(self.top_k, 0)  # in vLLM, -1 means all tokens
        return SamplingParams(**{name: value for name, value in given.items() if value is not None})

    def _beams(self) -> int | None:
        """Return the beam width: `num_beams`, or with vLLM's `use_beam_search` the number of replies."""
        if not self.use_beam_search:
            if self.use_beam_search is False and (self.num_beams or 1) > 1:
                raise BadParams("use_beam_search", f"cannot be false with num_beams={self.num_beams}")
            return self.num_beams
        width = self.num_beams or self.n or 1
        if width == 1:
            raise BadParams("use_beam_search", "needs a beam width above 1; set num_beams")
        return width

    def grammar(self) -> RequestedGrammar | None:
        """Return the grammar that the reply's text must match."""
        guided = {name: getattr(self, name) for name in GUIDED}
        return requested_grammar(
            self.response_format, self.structured_outputs, guided, self.disable_any_whitespace
        )

    def _biases(self) -> dict[int, float] | None:
        biases = self.logit_bias
        for token in biases or ():
            if not (token.isascii() and token.isdecimal() and len(token) < 10):
                raise BadParams("logit_bias", f"keys must be token ids, got {token[:40]!r}")
        return None if biases is None else {int(token): bias for token, bias in biases.items()}


_SAME = frozenset(
    "temperature top_p presence_penalty frequency_penalty seed stop min_p repetition_penalty "
    "ignore_eos min_tokens n best_of length_penalty early_stopping speculate draft_tokens "
    "include_stop_str_in_output allowed_token_ids bad_words prompt_logprobs logprob_token_ids".split()
)


class ConversationFields(Sparse):
    """The fields beside the messages that shape a chat's prompt."""

    tools: list[dict[str, Any]] | None = Field(None, max_length=128)
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class ChatRequest(GenerationRequest, ConversationFields):
    messages: Messages = Field(min_length=1)
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    modalities: list[Literal["text"]] | None = Field(None, max_length=8)
    reasoning_effort: Effort | None = None
    include_reasoning: bool | None = None
    documents: list[dict[str, str]] | None = Field(None, max_length=MAX_DOCUMENTS)
    add_special_tokens: Literal[False] | None = None  # the template writes its own

    # Accepted and ignored
    verbosity: Literal["low", "medium", "high"] | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None


class CompletionRequest(GenerationRequest):
    prompt: (
        str
        | Annotated[list[str], Field(min_length=1, max_length=MAX_CHOICES)]
        | Annotated[TokenIds, Field(min_length=1)]
        | Annotated[
            list[Annotated[TokenIds, Field(min_length=1)]], Field(min_length=1, max_length=MAX_CHOICES)
        ]
    )
    max_tokens: int | None = Field(None, ge=0, lt=2**31)
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    echo: bool | None = None
    add_special_tokens: bool | None = None  # true by default
