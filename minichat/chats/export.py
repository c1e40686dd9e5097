"""Export a chat as Markdown, or as JSON that can be imported again."""

import json
import re
from dataclasses import asdict
from datetime import datetime
from typing import Any, NoReturn

from engine.api.errors import BadParams
from engine.api.params import SamplingParams
from minichat.chats.errors import BadExport
from minichat.chats.model import ROLES, STATES, Attachment, Chat, Message, ReplyStats
from minichat.chats.rows import params_from, plain_params, storable
from minichat.plural import plural

FORMAT = "minichat chat"
VERSION = 1
YEAR_9999 = 253_370_764_800
_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # of a character beyond U+FFFF, in JSON
_LARGEST = 1e15  # of a reply's figures; infinity and NaN are none
_SPEAKERS = {"system": "System", "user": "You", "assistant": "Reply"}


def to_markdown(chat: Chat) -> str:
    """The chat in Markdown, with a heading for each message."""
    params = {"temperature": chat.params.temperature, **plain_params(chat.params)}
    decoding = ", ".join(f"{name} {json.dumps(value, ensure_ascii=False)}" for name, value in params.items())
    facts = [f"- started {_when(chat.created_at)}", f"- decoding: {decoding}"]
    facts += [f"- adapter: {chat.adapter}"] if chat.adapter else []
    if chat.system:
        facts.append(f"- system prompt: {' '.join(chat.system.split())}")
    parts = [f"# {chat.title or 'Untitled'}", "\n".join(facts), *map(_message, chat.messages)]
    return "\n\n".join(parts) + "\n"


def to_json(chat: Chat) -> str:
    """Everything except ids, letter and draft, which belong to the store."""
    messages = [asdict(message) for message in chat.messages]
    for message in messages:
        del message["id"], message["refused"]
    exported = {
        "format": FORMAT,
        "version": VERSION,
        "title": chat.title,
        "system": chat.system,
        "created_at": chat.created_at,
        "params": plain_params(chat.params),
        "adapter": chat.adapter,
        "messages": messages,
    }
    return json.dumps(exported, ensure_ascii=False, indent=2) + "\n"


def from_json(text: str) -> Chat:
    """Parse a chat, without ids. A reply that was streaming at the export becomes a stopped one."""
    try:
        found = _parsed(text)
        if _HALF.search(text):  # which no text in UTF-8 can have
            found = json.loads(storable(json.dumps(found, ensure_ascii=False)))
    except (ValueError, RecursionError) as error:
        raise BadExport(f"invalid JSON: {error}") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise BadExport(f'not an exported chat: "format" must be "{FORMAT}"')
    if found.get("version") != VERSION:
        raise BadExport(f'"version" must be {VERSION}, got {found.get("version")!r}')
    messages = _get(found, "messages", "", list)
    return Chat(
        id=0,
        letter="",
        title=_get(found, "title", "", str),
        system=_get(found, "system", "", str),
        params=_params(_get(found, "params", "", dict)),
        messages=[_read_message(each, f"messages[{number}]") for number, each in enumerate(messages)],
        created_at=_time(found, "created_at", ""),
        adapter=_get(found, "adapter", "", str) if "adapter" in found else "",  # missing in older exports
    )


def _parsed(text: str) -> Any:
    """The JSON value. The hook is Python for each object, so that other threads run during a long text."""
    return json.loads(text, object_hook=lambda found: found)


def _message(message: Message) -> str:
    parts = [f"## {_SPEAKERS[message.role]}, {_when(message.at)}"]
    if message.reasoning:
        parts.append(f"<details><summary>Reasoning</summary>\n\n{message.reasoning}\n\n</details>")
    parts += [message.text] if message.text else []
    parts += [attachment.fenced for attachment in message.attachments]
    remarks: list[str] = [message.state] if message.state != "done" else []
    remarks += [message.error] if message.error else []
    if stats := message.stats:
        copied = f" ({stats.copied:,} copied)" if stats.copied else ""
        spent = f"{plural(stats.tokens, 'token')}{copied} in {stats.seconds:.1f} s"
        remarks.append(f"{spent}, {stats.strategy}")
    if remarks:
        parts.append(f"*{'; '.join(remarks)}*")
    return "\n\n".join(parts)


def _when(at: float) -> str:
    return f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M %z}"


def _read_message(found: Any, place: str) -> Message:
    if not isinstance(found, dict):
        _refuse(place, "a message", found)
    state = _get(found, "state", place, str)
    return Message(
        id=0,
        role=_one_of(ROLES, _get(found, "role", place, str), f"{place}.role"),
        text=_get(found, "text", place, str),
        reasoning=_get(found, "reasoning", place, str),
        at=_time(found, "at", place),
        state="stopped" if state == "streaming" else _one_of(STATES, state, f"{place}.state"),
        error=_get(found, "error", place, str),
        stats=_stats(_get_object(found, "stats", place), f"{place}.stats"),
        params=None if (params := _get_object(found, "params", place)) is None else _known(params),
        attachments=_attachments(found, place),
    )


def _attachments(found: dict[str, Any], place: str) -> tuple[Attachment, ...]:
    """The attachments; older exports have none."""
    if "attachments" not in found:
        return ()
    read = []
    for number, each in enumerate(_get(found, "attachments", place, list)):
        at = f"{place}.attachments[{number}]"
        if not isinstance(each, dict):
            _refuse(at, "an attachment", each)
        read.append(Attachment(_get(each, "name", at, str), _get(each, "text", at, str)))
    return tuple(read)


def _known(params: dict[str, Any]) -> dict[str, Any]:
    """What a reply was sampled with, as far as this version can show it."""
    return plain_params(params_from(params))


def _params(found: dict[str, Any]) -> SamplingParams:
    try:
        return SamplingParams().changed(**found)
    except BadParams as error:
        raise BadExport(f"params.{error}") from error


def _stats(found: dict[str, Any] | None, place: str) -> ReplyStats | None:
    if found is None:
        return None
    kinds = {"tokens": int, "seconds": float, "ttft": float, "prompt_tokens": int, "strategy": str}
    newer: dict[str, type] = {"left_out": int, "blocks": int, "loaded": int, "tier": str, "copied": int}
    newer |= {"saved": float, "decoding": float}
    kinds |= {name: kind for name, kind in newer.items() if name in found}  # missing in older exports
    return ReplyStats(**{name: _figure(found, name, place, kind) for name, kind in kinds.items()})


def _get(found: dict[str, Any], name: str, place: str, kind: Any) -> Any:
    """The value of that name and type; a whole number is also a number."""
    value = found.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float if kind is float else kind):
        _refuse(f"{place}.{name}".lstrip("."), _KINDS[kind], value)
    return value


def _figure(found: dict[str, Any], name: str, place: str, kind: Any) -> Any:
    """A value that can be shown."""
    value = _get(found, name, place, kind)
    if kind is not str and not abs(value) < _LARGEST:
        _refuse(f"{place}.{name}", f"{_KINDS[kind]} below {_LARGEST:g}", value)
    return value


def _time(found: dict[str, Any], name: str, place: str) -> float:
    at = _get(found, name, place, float)
    return (
        float(at) if 0 <= at < YEAR_9999 else _refuse(f"{place}.{name}".lstrip("."), "seconds since 1970", at)
    )


def _get_object(found: dict[str, Any], name: str, place: str) -> dict[str, Any] | None:
    return None if found.get(name) is None else _get(found, name, place, dict)


_KINDS = {str: "a text", int: "a whole number", float: "a number", list: "a list", dict: "an object"}


def _one_of(choices: tuple[Any, ...], value: str, place: str) -> Any:
    return value if value in choices else _refuse(place, f"one of {', '.join(choices)}", value)


def _refuse(place: str, expected: str, value: Any) -> NoReturn:
    raise BadExport(f"{place} must be {expected}, got {json.dumps(value)[:60]}")
