"""Bodies of requests as pydantic checks them: each field by its name, and nothing guessed."""

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine.server.http.errors import ApiError

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
MAX_SAID = 1_000_000  # tokens of a reply that are there already

# Lists that may be long end at the first part that is wrong: a message about each would cost gigabytes.
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
Messages = Annotated[list[dict[str, Any]], Field(fail_fast=True)]
AnyPrompt = str | Annotated[list[int], Field(fail_fast=True)] | Messages

M = TypeVar("M", bound="Strict")


class Strict(BaseModel):
    """Nothing is guessed: 1 is no text, "1" no number, and a name that is not known no field."""

    model_config = ConfigDict(extra="forbid", strict=True)
    kinds: ClassVar[set[str]] = {"str", "int", "float", "bool"}  # how pydantic names members of unions

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        Strict.kinds.add(cls.__name__)


def parsed(kind: type[M], value: Any) -> M:
    """The request; an ApiError that names the field where it is none."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
        same = (each for each in found if each["loc"][:1] == found[0]["loc"][:1])
        worst = max(same, key=lambda each: _nearness(each["type"], each["loc"]))
        raise _refusal(kind, worst["type"], worst["loc"], worst["msg"], value) from None


def _nearness(problem: str, loc: tuple[int | str, ...]) -> tuple[bool, int, list[int]]:
    """How near a value came to one member of a union: of its kind, and sound up to a place far inside."""
    return not problem.endswith("_type"), len(loc), [step for step in loc if isinstance(step, int)]


def _refusal(
    kind: type[Strict], problem: str, loc: tuple[int | str, ...], message: str, value: Any
) -> ApiError:
    if not loc:
        return ApiError(400, f"the body must be an object with the fields of a request, not {value!r:.60}")
    place = "".join(_steps(loc)) or str(loc[0])
    if problem in ("extra_forbidden", "none_required"):
        there = [name for name, each in kind.model_fields.items() if each.annotation is not type(None)]
        near = get_close_matches(str(loc[-1])[:80], there, n=1) if len(loc) == 1 else []
        hint = f"; did you mean {near[0]}?" if near else ""
        return ApiError(
            400,
            f"{place[:100]} is not known or not supported here{hint}",
            param=place[:100],
            code="unknown_field",
        )
    if problem == "missing":
        return ApiError(400, f"{place} is missing", param=place)
    return ApiError(400, f"{place}: {message[0].lower()}{message[1:]}", param=place)


def _steps(loc: tuple[int | str, ...]) -> Iterator[str]:
    """Where it is in the request; pydantic's own words for the members of a union are left out."""
    for n, step in enumerate(loc):
        if isinstance(step, int):
            yield f"[{step}]"
        elif n == 0:
            yield step
        elif step.isidentifier() and step not in Strict.kinds:
            yield f".{step}"


def openapi_body(kind: type[BaseModel]) -> dict[str, Any]:
    """How a route says what it reads; the schema itself is put beside all others by the application."""
    reference = {"$ref": f"#/components/schemas/{kind.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": reference}}}}


def openapi_answers(*kinds: str) -> dict[int | str, dict[str, Any]]:
    """How a route says in which forms it answers."""
    return {200: {"description": "The answer", "content": {kind: {"schema": {}} for kind in kinds}}}


STREAM = "text/event-stream"
