"""The request bodies, field by field. A field that is not listed is an error that names it."""

import json
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from engine.api.params import MAX_STOPS, Grammar, SamplingParams
from engine.server.anthropic.errors import NAMES
from engine.server.schema import Messages, Ordered, Sparse, Strict

Text = Annotated[str, Field(min_length=1)]


class Tool(Strict):
    """A tool that the client runs. Further fields are hints for Anthropic's own server."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["custom"] | None = None
    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None


class ToolChoice(Strict):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Strict):
    """Whether the model reasons first, if its template has that choice. Budgets have no effect."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["enabled", "adaptive", "between_tools", "disabled"]


class OutputFormat(Strict):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Strict):
    effort: str | None = None  # without effect
    format: OutputFormat | None = None


class CountRequest(Sparse):
    """The fields that make the prompt, and those that are accepted and ignored."""

    model: str
    messages: Messages = Field(min_length=1)
    system: str | Messages | None = None
    tools: list[Tool] | None = Field(None, max_length=128)
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    thread: dict[str, Any] | None = None  # refused; clients then send the whole conversation

    # Accepted and ignored
    cache_control: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    speed: str | None = None
    user_profile_id: str | None = None
    workspace_id: str | None = None


class MessagesRequest(CountRequest, Ordered):
    max_tokens: int = Field(ge=1, lt=2**31)
    stream: bool | None = None
    stop_sequences: list[Text] | None = Field(None, max_length=MAX_STOPS)
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0, lt=2**31)

    # As on the other routes
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, ge=0.01, le=100)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    ignore_eos: bool | None = None

    # Accepted and ignored
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    inference_geo: str | None = None
    diagnostics: dict[str, Any] | None = None

    def text_grammar(self) -> Grammar | None:
        """Return the grammar that the reply's text must match."""
        form = self.output_config and self.output_config.format
        return Grammar("json", json.dumps(form.schema_)) if form else None

    def names(self) -> dict[str, str]:
        """Return the engine's names of fields, and Anthropic's in this request."""
        formed = self.output_config and self.output_config.format
        return {**NAMES, "grammar": "output_config.format.schema"} if formed else NAMES

    def sampling(self, **more: Any) -> SamplingParams:
        """Return the engine's sampling parameters."""
        given = {name: getattr(self, name) for name in _SAME} | {"stop": self.stop_sequences} | more
        return SamplingParams(**{name: value for name, value in given.items() if value is not None})


_SAME = "max_tokens temperature top_p top_k min_p repetition_penalty seed ignore_eos".split()
