"""docs/server.md lists each field of each body, with the routes that have it."""

import re
from pathlib import Path
from types import NoneType
from typing import NamedTuple

import pytest
from pydantic import BaseModel

from engine.server.anthropic.schema import CountRequest, MessagesRequest
from engine.server.native.attach import ForkRequest, ReplyRequest
from engine.server.native.layout import LayoutRequest, TextsRequest
from engine.server.native.ws import CancelMessage, GenerateMessage, UpdateMessage
from engine.server.ollama.embeddings import OllamaEmbeddingsRequest, OllamaEmbedRequest
from engine.server.ollama.schema import OllamaChatRequest, OllamaGenerateRequest, OllamaOptions
from engine.server.openai.embeddings import EmbeddingRequest
from engine.server.openai.responses_api.schema import ResponsesRequest
from engine.server.openai.schema import ChatRequest, CompletionRequest, GenerationRequest
from engine.server.openai.tokens import DetokenizeRequest, TokenizeRequest

PAGE = (Path(__file__).parents[3] / "docs/server.md").read_text()


class Row(NamedTuple):
    fields: frozenset[str]
    only: str
    text: str


def names(cell: str) -> frozenset[str]:
    """The fields of a cell; of a member, the field that it is in. What is in parentheses are values."""
    quoted = re.findall(r"`([^`]+)`", re.sub(r"\([^)]*\)", "", cell))
    found = (re.fullmatch(r"([a-z][a-z_]*)([.:].*)?", each) for each in quoted)
    return frozenset(each[1] for each in found if each)


def rows(heading: str) -> list[Row]:
    """The rows of the first table of fields after this heading."""
    table = PAGE[PAGE.index(f"# {heading}\n") :].partition("\n| field |")[2].partition("\n\n")[0]
    found = []
    for line in table.splitlines()[2:]:
        first, *only, text = (each.strip() for each in line.strip("|").split("|"))
        found.append(Row(names(first), "".join(only), text))
    return found


def fields(*bodies: type[BaseModel]) -> set[str]:
    return {name for body in bodies for name in body.model_fields}


def listed(found: list[Row], only: str) -> set[str]:
    return {name for row in found if row.only in ("", only) for name in row.fields}


@pytest.mark.parametrize(("body", "only"), [(ChatRequest, "chat"), (CompletionRequest, "completions")])
def test_of_openais_routes(body: type[BaseModel], only: str) -> None:
    assert listed(rows("OpenAI's routes"), only) == fields(body)


def test_of_responses() -> None:
    found = rows("Responses")
    every = listed(found, "")
    refused = {name for row in found if row.text.startswith("400") for name in row.fields}
    absent = {name for name, each in ResponsesRequest.model_fields.items() if each.annotation is NoneType}
    assert fields(ResponsesRequest) - fields(GenerationRequest) <= every <= fields(ResponsesRequest)
    assert refused >= absent | {"max_tokens", "return_token_ids", "background", "conversation"}


def test_of_embeddings() -> None:
    assert listed(rows("Embeddings"), "") | {"model"} == fields(EmbeddingRequest)


def test_of_anthropics_routes() -> None:
    found = [row for row in rows("Anthropic's routes") if "cache_control" not in row.text]
    assert listed(found, "") == fields(MessagesRequest)
    counted = re.search(r"^`count_tokens` takes ([^.]+)\.", PAGE, re.MULTILINE)
    assert counted and names(counted[1]) == fields(CountRequest)


@pytest.mark.parametrize(
    ("body", "only"), [(OllamaChatRequest, "`/api/chat`"), (OllamaGenerateRequest, "`/api/generate`")]
)
def test_of_ollamas_routes(body: type[BaseModel], only: str) -> None:
    found = [row for row in rows("Ollama's routes") if not row.text.startswith("ignored")]
    options = {name for row in found if "options" in row.fields for name in row.fields}
    assert options - {"options"} == fields(OllamaOptions)
    assert listed([row for row in found if "options" not in row.fields], only) | {"options"} == fields(body)


@pytest.mark.parametrize(
    ("begins", "bodies"),
    [
        ("`POST /tokenize`", (TokenizeRequest, DetokenizeRequest)),
        ("`/api/embed` takes", (OllamaEmbedRequest, OllamaEmbeddingsRequest)),
    ],
)
def test_of_small_bodies(begins: str, bodies: tuple[type[BaseModel], ...]) -> None:
    paragraph = PAGE[PAGE.index(f"\n{begins}") :].partition("\n\n")[0]
    assert names(paragraph.replace("(", "").replace(")", "")) >= fields(*bodies) - {"model"}


@pytest.mark.parametrize(
    ("begins", "body"),
    [
        ("`POST /engine/layout` | `", LayoutRequest),
        ("`POST /engine/texts` | `", TextsRequest),
        ("| `", GenerateMessage),
        ("| `", UpdateMessage),
        ("| `", CancelMessage),
        ("1. `POST /engine/replies` with `", ReplyRequest),
    ],
)
def test_of_our_own_bodies(begins: str, body: type[BaseModel]) -> None:
    """They are shown as JSON. A client names a reply with `tag`, which the text explains."""
    kind = getattr(body.model_fields.get("type"), "annotation", None)
    first = f'"type": "{kind.__args__[0]}"' if kind else ""
    shown = PAGE[PAGE.index(f"\n{begins}{{{first}" if kind else f"{begins}{{") :].partition("}`")[0]
    inside = re.sub(r"\{\.\.\.\}|\{\"temperature\": 0\.2\}", "{}", shown)
    found = set(re.findall(r'"(\w+)":', inside))
    assert found | ({"tag"} if issubclass(body, ForkRequest) else set()) == fields(body)
