"""The request bodies. As in Ollama, fields and options that are not listed are ignored."""

import json
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from engine.api.params import MAX_LOGPROBS, MAX_STOPS, Grammar, SamplingParams
from engine.server.http.errors import ApiError
from engine.server.schema import Messages, Ordered, Strict
from engine.server.urgency import USUAL, Urgency

Stop = Annotated[str, Field(min_length=1)]

_REFUSED = {
    "images": "this engine reads only text",
    "suffix": "this server only continues a text at its end",
    "template": "a reply uses the model's own; for another format send raw and a prompt to /api/generate",
    "context": "send the whole conversation to /api/chat",
}
_SAME = "temperature top_p min_p stop presence_penalty frequency_penalty".split()


class OllamaBody(Strict):
    model_config = ConfigDict(extra="ignore", strict=True)


class OllamaOptions(Ordered, OllamaBody):
    """Sampling options, and the place in the queue, which Ollama does not have.

    Ollama's other options configure its own engine (num_ctx, num_gpu, mirostat ...).
    """

    temperature: float | None = Field(None, ge=0, le=100)
    top_k: int | None = Field(None, lt=2**31)
    top_p: float | None = Field(None, gt=0, le=1)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    num_predict: int | None = Field(None, lt=2**31)
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None = None
    repeat_penalty: float | None = Field(None, ge=0.01, le=100)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)

    def changes(self) -> dict[str, Any]:
        """Return what these options change in the engine's sampling parameters."""
        given: dict[str, Any] = {name: getattr(self, name) for name in _SAME}
        given["repetition_penalty"] = self.repeat_penalty
        if self.top_k is not None:
            given["top_k"] = max(self.top_k, 0)
        if self.num_predict is not None and self.num_predict > 0:  # -1 and -2: as many as fit
            given["max_tokens"] = self.num_predict
        if self.seed != -1:  # a random one
            given["seed"] = self.seed
        return {name: value for name, value in given.items() if value is not None}


class OllamaRequest(OllamaBody):
    """The fields of both routes."""

    model: str
    stream: bool | None = None  # true by default
    format: Literal["", "json"] | dict[str, Any] | None = None
    options: OllamaOptions | None = None
    think: bool | str | None = None
    images: list[Any] | None = None
    suffix: str | None = None
    template: str | None = None
    context: list[Any] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)

    def check(self) -> None:
        """Refuse fields that would change the reply and are not supported."""
        for name, why in _REFUSED.items():
            if getattr(self, name):
                raise ApiError(400, f"{name} is not supported: {why}", param=name)

    def sampling(self, grammar: Grammar | None) -> SamplingParams:
        """Return the engine's sampling parameters."""
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        params = SamplingParams(grammar=grammar, logprobs=logprobs)
        return params.changed(**self.options.changes() if self.options else {})

    @property
    def urgency(self) -> Urgency:
        return self.options.urgency if self.options else USUAL

    def grammar(self) -> Grammar | None:
        """Return the grammar that the reply's text must match."""
        if self.format in (None, ""):
            return None
        return Grammar("json", json.dumps({"type": "object"} if self.format == "json" else self.format))

    def template_options(self) -> dict[str, Any]:
        """Return the variables for the template. A template that does not know them ignores them."""
        if self.think is None:
            return {}
        effort = {"reasoning_effort": self.think} if isinstance(self.think, str) else {}
        return {"enable_thinking": bool(self.think), **effort}


class OllamaChatRequest(OllamaRequest):
    messages: Messages | None = None
    tools: list[dict[str, Any]] | None = Field(None, max_length=128)


class OllamaGenerateRequest(OllamaRequest):
    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None


class OllamaShowRequest(OllamaBody):
    model: str | None = None
    name: str | None = None  # its older name
