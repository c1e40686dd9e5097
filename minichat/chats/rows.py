"""Convert between rows, JSON values and dataclasses. Reading is lenient, because versions differ."""

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from engine.api.errors import BadParams
from engine.api.params import FIELDS, SamplingParams
from minichat.chats.model import Attachment, Chat, Edit, Message, ReplyStats

_DEFAULT = SamplingParams()


def changes_between(before: SamplingParams, after: SamplingParams) -> dict[str, Any]:
    """The parameters of `after` that differ."""
    values = {name: getattr(after, name) for name in FIELDS}
    return {name: value for name, value in values.items() if value != getattr(before, name)}


def plain_params(params: SamplingParams) -> dict[str, Any]:
    """The parameters that differ from the defaults, as JSON values."""
    return json.loads(json.dumps(changes_between(_DEFAULT, params), default=asdict))


def packed_params(params: SamplingParams) -> str:
    return json.dumps(plain_params(params), separators=(",", ":"))


def params_from(plain: Any) -> SamplingParams:
    """The parameters; unknown and invalid ones are ignored."""
    params = _DEFAULT
    for name, value in plain.items() if isinstance(plain, Mapping) else ():
        try:
            params = params.changed(**{name: value})
        except BadParams:
            continue
    return params


def stats_from(plain: Any) -> ReplyStats | None:
    try:
        return ReplyStats(**plain) if plain else None
    except TypeError:
        return None


def attachments_from(plain: Any) -> tuple[Attachment, ...]:
    try:
        return tuple(Attachment(**each) for each in plain or ())
    except TypeError:
        return ()


def packed(value: Any) -> str | None:
    """A column with JSON."""
    if value is None:
        return None
    return json.dumps(value, separators=(",", ":"), default=asdict)


def packed_attachments(attachments: tuple[Attachment, ...]) -> str | None:
    return packed([asdict(each) for each in attachments]) if attachments else None


def unpacked(column: str | None) -> Any:
    try:
        return json.loads(column) if column else None
    except ValueError:
        return None


GONE = "gone"  # as the writer of a reply: it was killed while the reply was streaming


def storable(text: str) -> str:
    """Replace lone surrogates, which a paste may contain and UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def message_from(row: sqlite3.Row) -> Message:
    return Message(
        id=row["id"],
        role=row["role"],
        text=row["text"],
        reasoning=row["reasoning"],
        at=row["at"],
        state=row["state"],
        error=row["error"],
        stats=stats_from(unpacked(row["stats"])),
        params=unpacked(row["params"]),
        attachments=attachments_from(unpacked(row["attachments"])),
        interrupted=row["writer"] == GONE,
    )


def chat_from(row: sqlite3.Row, messages: list[Message], earlier: int, edit: Edit | None) -> Chat:
    return Chat(
        id=row["id"],
        letter=row["letter"],
        title=row["title"],
        system=row["system"],
        params=params_from(unpacked(row["params"])),
        own_params=params_from(own) if (own := unpacked(row["own_params"])) is not None else None,
        adapter=row["adapter"],
        messages=messages,
        draft=row["draft"],
        edit=edit,
        typed_system=row["typed_system"],
        earlier=earlier,
        created_at=row["created_at"],
        closed_at=row["closed_at"],
    )
