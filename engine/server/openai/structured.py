"""The grammar of a reply's text, from the fields of OpenAI's API and of vLLM's."""

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from engine.api.errors import BadParams
from engine.api.params import MAX_GRAMMAR, Grammar
from engine.grammar.source import MAX_CHOICES
from engine.server.http.errors import ApiError
from engine.server.openai.errors import to_openai_error
from engine.server.reply_grammar import ToolCallRules

Choices = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=MAX_CHOICES)]
Expression = Annotated[str, Field(min_length=1, max_length=MAX_GRAMMAR)]
Schema = dict[str, Any] | bool
Requested = list[tuple[str, str, Any]]  # the fields that request a grammar, its kind and its source
_OBJECT: Schema = {"type": "object"}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class NamedSchema(_Strict):
    name: str = Field(pattern="^[a-zA-Z0-9_-]{1,64}$")
    description: str | None = None
    json_schema: Schema | None = Field(None, alias="schema")  # left out: any object
    strict: bool | None = None  # the schema is enforced either way


class ResponseFormat(_Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    def requested(self) -> Requested:
        if self.type == "text":
            if self.json_schema:
                problem = "response_format.json_schema requires type json_schema"
                raise ApiError(400, problem, param="response_format.type")
            return []
        if self.type == "json_object":
            return [("response_format", "json", _OBJECT)]
        if self.json_schema is None:
            place = "response_format.json_schema"
            raise ApiError(400, f"{place} is missing", param=place)
        schema = self.json_schema.json_schema
        return [("response_format.json_schema.schema", "json", _OBJECT if schema is None else schema)]


class TextFormat(ResponseFormat):
    """The same in the Responses API, which does not nest the members of the schema."""

    json_schema: None = None
    name: str | None = Field(None, pattern="^[a-zA-Z0-9_-]{1,64}$")
    description: str | None = None
    schema_: Schema | None = Field(None, alias="schema")
    strict: bool | None = None  # the schema is enforced either way

    def requested(self) -> Requested:
        if self.type == "text":
            return []
        if self.type == "json_object":
            return [("text.format", "json", _OBJECT)]
        for name, value in ("name", self.name), ("schema", self.schema_):
            if value is None:
                place = f"text.format.{name}"
                raise ApiError(400, f"{place} is missing", param=place)
        return [("text.format.schema", "json", self.schema_)]


class StructuredOutputs(_Strict):
    """vLLM's field since 0.11."""

    json_schema: Schema | str | None = Field(None, alias="json")
    regex: Expression | None = None
    choice: Choices | None = None
    grammar: Expression | None = None
    json_object: Literal[True] | None = None
    disable_any_whitespace: bool | None = None


class RequestedGrammar(NamedTuple):
    """A grammar, and the field that requested it."""

    place: str
    grammar: Grammar
    calls: ToolCallRules | None = None  # whose rules are part of it

    @classmethod
    def of(
        cls, place: str, make: Callable[[], Grammar | None], calls: ToolCallRules | None = None
    ) -> "RequestedGrammar | None":
        """Return the grammar that `make` returns, if any. An error names the field `place`."""
        try:
            grammar = make()
        except BadParams as error:
            raise refusal(error, place) from None
        return None if grammar is None else cls(place, grammar, calls)


GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "lark",
}


def requested_grammar(
    form: ResponseFormat | None,
    outputs: StructuredOutputs | None,
    guided: Mapping[str, Any],
    disable_any_whitespace: bool | None,
) -> RequestedGrammar | None:
    """Return the one grammar that these fields request. `guided`: vLLM's older fields, by name."""
    found = [*(form.requested() if form else []), *_of_outputs(outputs)]
    found += [(name, GUIDED[name], value) for name, value in guided.items() if value is not None]
    if not found:
        return None
    if len(found) > 1:
        places = [place for place, _, _ in found]
        raise ApiError(400, f"{places[0]} and {places[1]} cannot both be set", param=places[1])
    [(place, kind, value)] = found
    strict = (disable_any_whitespace, outputs and outputs.disable_any_whitespace)
    return RequestedGrammar.of(place, lambda: _grammar(kind, value, any_whitespace=False in strict))


def refusal(error: BadParams, place: str) -> ApiError:
    """Return the error for a bad parameter, or for the grammar in `place`, with the client's field names."""
    if error.field != "grammar" or not place:
        return to_openai_error(error)
    problem = str(to_openai_error(error)).removeprefix("grammar: ")
    return ApiError(400, f"{place}: {problem}", param=place, code="invalid_grammar")


def _of_outputs(outputs: StructuredOutputs | None) -> Requested:
    if outputs is None:
        return []
    given = [
        ("json", "json", outputs.json_schema),
        ("regex", "regex", outputs.regex),
        ("choice", "choice", outputs.choice),
        ("grammar", "lark", outputs.grammar),
        ("json_object", "json", _OBJECT if outputs.json_object else None),
    ]
    found = [(f"structured_outputs.{name}", kind, value) for name, kind, value in given if value is not None]
    if not found:
        raise ApiError(
            400,
            "structured_outputs is empty; set json, regex, choice or grammar",
            param="structured_outputs",
        )
    return found


def _grammar(kind: str, value: Any, *, any_whitespace: bool) -> Grammar:
    match kind:
        case "json":
            return Grammar("json", value if isinstance(value, str) else json.dumps(value), any_whitespace)
        case "choice":
            return Grammar("choice", json.dumps(value))
        case "lark":
            return Grammar("lark", value)
    return Grammar("regex", value)
