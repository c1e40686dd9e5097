"""The pydantic base of request bodies: unknown fields are errors, and types are not coerced."""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from engine.server.http.errors import ApiError, quoted
from engine.server.urgency import Urgency

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
MAX_DEADLINE = 86_400_000.0  # milliseconds
MAX_REPLY_PREFIX = 1_000_000  # tokens that a reply starts with

# Long lists fail at the first bad item: an error message for each item could take gigabytes.
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
Messages = Annotated[list[dict[str, Any]], Field(fail_fast=True)]
AdapterName = Annotated[str, Field(max_length=100)]
AnyPrompt = str | Annotated[list[int], Field(fail_fast=True)] | Messages

M = TypeVar("M", bound="Strict")


class Strict(BaseModel):
    """A body without coercion: 1 is not a string, "1" is not a number, and an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", strict=True)
    kinds: ClassVar[set[str]] = {"str", "int", "float", "bool"}  # how pydantic names members of unions

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        Strict.kinds.add(cls.__name__)


class Ordered(Strict):
    """The fields that place a request in the queue."""

    priority: int | None = Field(None, ge=-(2**31), le=2**31)
    deadline_ms: float | None = Field(None, ge=0, le=MAX_DEADLINE, allow_inf_nan=False)

    @property
    def urgency(self) -> Urgency:
        return Urgency(self.priority or 0, None if self.deadline_ms is None else self.deadline_ms / 1000)


class Sparse(Strict):
    """A body in which null counts as absent, also for unknown fields: clients may send all they know."""

    @model_validator(mode="before")
    @classmethod
    def _without_unset(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        return {name: value for name, value in body.items() if value is not None}


def parsed(kind: type[M], value: Any) -> M:
    """Return `value` as a `kind`. If it is invalid, raise an ApiError that names the field."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        found = error.errors(include_url=False)
        same = [each for each in found if each["loc"][:1] == found[0]["loc"][:1]]
        worst = max(same, key=_nearness)
        raise _refusal(kind, worst["type"], worst["loc"], _message(worst, same), worst["input"]) from None


def _nearness(error: Any) -> tuple[bool, int, list[int]]:
    """A sort key for a union's errors: the best match has the right type and fails deepest."""
    problem, loc = error["type"], error["loc"]
    wrong_type = problem.endswith("_type") or (
        problem == "literal_error" and isinstance(error["input"], dict)
    )
    return not wrong_type, len(loc), [step for step in loc if isinstance(step, int)]


def _message(worst: Any, found: Sequence[Any]) -> str:
    """The message of one of these errors. A value of a type that a union lacks gets the messages of all."""
    places = {"".join(_steps(each["loc"])) for each in found}
    if len(places) > 1 or not all(each["type"].endswith(("_type", "literal_error")) for each in found):
        return sentence(worst)
    first, *more = dict.fromkeys(map(sentence, found))
    return " or ".join([first, *(each.removeprefix("must be ") for each in more)])


_SENTENCES = {  # by pydantic's name of the problem, whose own messages are about Python
    "string_type": "must be a string",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "literal_error": "must be {expected}",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must have at least {min_length} items",
    "too_long": "must have at most {max_length} items",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match {pattern}",
}


def sentence(error: Any) -> str:
    """What is wrong with a value, after its name."""
    problem, limits = error["type"], error.get("ctx", {})
    if limits.get("min_length") == 1 and problem.endswith("too_short"):
        return "must not be empty"
    if problem not in _SENTENCES:
        return f"{error['msg'][0].lower()}{error['msg'][1:]}"
    return _SENTENCES[problem].format_map({name: _plain(limit) for name, limit in limits.items()})


def _plain(limit: object) -> object:
    if limit in ("True", "False"):
        return str(limit).lower()
    return int(limit) if isinstance(limit, float) and limit.is_integer() else limit


def _refusal(
    kind: type[Strict], problem: str, loc: tuple[int | str, ...], message: str, value: Any
) -> ApiError:
    if not loc:
        return ApiError(400, f"the body must be a JSON object, got {quoted(value)}")
    place = "".join(_steps(loc)) or str(loc[0])
    if problem in ("extra_forbidden", "none_required"):
        there = [name for name, each in kind.model_fields.items() if each.annotation is not type(None)]
        near = get_close_matches(str(loc[-1])[:80], there, n=1, cutoff=0.75) if len(loc) == 1 else []
        hint = f"; did you mean {near[0]}?" if near else ""
        return ApiError(
            400,
            f"{place[:100]} is not a known or supported field{hint}",
            param=place[:100],
            code="unknown_field",
        )
    if problem == "missing":
        return ApiError(400, f"{place} is missing", param=place)
    problem = f"{place}: {message}"
    if isinstance(value, str | int | float | None):
        problem += f", got {quoted(value)}"
    return ApiError(400, problem, param=place)


def _steps(loc: tuple[int | str, ...]) -> Iterator[str]:
    """Yield the path of a field without pydantic's labels for union members."""
    for n, step in enumerate(loc):
        if isinstance(step, int):
            yield f"[{step}]"
        elif n == 0:
            yield step
        elif step.isidentifier() and step not in Strict.kinds:
            yield f".{step}"


def openapi_body(kind: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI entry for a route's body. The application adds the schema it refers to."""
    reference = {"$ref": f"#/components/schemas/{kind.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": reference}}}}


def openapi_answers(*kinds: str) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI entry for a route's responses, by media type."""
    return {200: {"description": "The response", "content": {kind: {"schema": {}} for kind in kinds}}}


STREAM = "text/event-stream"
