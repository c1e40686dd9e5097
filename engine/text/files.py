"""The text files of a checkpoint: its tokenizer, special tokens and chat templates."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import tokenizers

from engine.api.errors import BadCheckpoint, UnsupportedModel
from engine.gguf.header import is_gguf

CONVERTIBLE = ("tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


@dataclass(frozen=True, slots=True)
class TextFiles:
    """The parsed files. Only their outer structure has been checked."""

    tokenizer: tokenizers.Tokenizer
    settings: dict[str, Any]  # tokenizer_config.json over special_tokens_map.json
    generation: dict[str, Any]
    config: dict[str, Any]
    templates: dict[str, str]

    @classmethod
    def read(cls, folder: Path) -> Self:
        settings = _object(folder / "special_tokens_map.json") | _object(folder / "tokenizer_config.json")
        return cls(
            tokenizer=_tokenizer(folder),
            settings=settings,
            generation=_object(folder / "generation_config.json"),
            config=_object(folder / "config.json"),
            templates=dict(_templates(folder, settings)),
        )


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder or a GGUF file should have a tokenizer."""
    return is_gguf(folder) or (folder / "tokenizer.json").is_file()


def _tokenizer(folder: Path) -> tokenizers.Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise UnsupportedModel(_found_instead(folder))
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for any problem
        raise BadCheckpoint(f"cannot load the tokenizer {path}: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _found_instead(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder} is not a folder; a model is a folder with config.json and tokenizer.json"
    here = sorted(path.name for path in folder.iterdir())
    listed = ", ".join(here[:12]) + (", ..." if len(here) > 12 else "") if here else "nothing"
    if old := [name for name in CONVERTIBLE if name in here]:
        return (
            f"{folder} has {old[0]} but no tokenizer.json; convert it once (transformers, sentencepiece): "
            f"AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
        )
    return f"{folder} has no tokenizer.json and no file to convert to one; it holds {listed}"


def _object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or an empty one if there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise BadCheckpoint(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadCheckpoint(f"{path} must hold a JSON object, not a {type(value).__name__}")
    return value


def _templates(folder: Path, settings: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name and source of each chat template. Later ones replace earlier ones of the same name."""
    yield from _named(
        folder / "chat_template.json", _object(folder / "chat_template.json").get("chat_template")
    )
    yield from _named(folder / "tokenizer_config.json", settings.get("chat_template"))
    if (path := folder / "chat_template.jinja").is_file():
        yield "default", _source(path)
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        yield path.stem, _source(path)


def _named(path: Path, value: Any) -> Iterator[tuple[str, str]]:
    match value:
        case None:
            return
        case str():
            yield "default", value
        case list() if all(isinstance(entry, dict) for entry in value):
            for entry in value:
                match entry:
                    case {"name": str(name), "template": str(source)}:
                        yield name, source
                    case _:
                        raise BadCheckpoint(f"{path}: an entry of chat_template has no name or no template")
        case _:
            raise BadCheckpoint(
                f"{path}: chat_template must be text or a list of named templates, not {value!r:.80}"
            )


def _source(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadCheckpoint(f"{path} is not UTF-8 text: {error}") from error
