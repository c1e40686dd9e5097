"""A request's conversation as the input of a chat template, which has the form of OpenAI's messages."""

from collections.abc import Iterator, Sequence
from typing import Any

from engine.host.prompts import ChatPrompt
from engine.server.anthropic.errors import NO_THREADS
from engine.server.anthropic.schema import CountRequest, Tool
from engine.server.http.errors import ApiError, quoted
from engine.server.reply_grammar import ToolCallRules
from engine.server.state import ServerState
from engine.server.tool_definitions import call_rules, check_schema, check_tools
from engine.text.messages import clean
from engine.text.tokenizer import checked_text

_FORMS = {
    "text": '{"type": "text", "text": "..."}',
    "tool_use": '{"type": "tool_use", "id": "...", "name": "...", "input": {...}}',
    "tool_result": '{"type": "tool_result", "tool_use_id": "...", "content": "..."}',
    "thinking": '{"type": "thinking", "thinking": "..."}',
}
Turns = list[dict[str, Any]]


def conversation(body: CountRequest, state: ServerState) -> ChatPrompt:
    """Return the template's input."""
    if not state.host.has_template:
        raise ApiError(400, "this model has no chat template; use /v1/completions", param="messages")
    if body.thread is not None:
        problem = "thread: this server keeps no conversations; send all messages without it"
        raise ApiError(400, problem, param="thread", code=NO_THREADS)
    system = [{"role": "system", "content": _text(body.system, "system")}] if body.system else []
    turns = [turn for n, each in enumerate(body.messages) for turn in _turns(each, f"messages[{n}]")]
    if body.messages[-1]["role"] != "user":
        raise _bad("messages", "must end with a user message: a reply does not continue an assistant's")
    tools = [_definition(tool, f"tools[{n}]") for n, tool in enumerate(body.tools or ())]
    check_tools(tools, state.tool_style)
    hidden = body.tool_choice is not None and body.tool_choice.type == "none"
    options = {"enable_thinking": body.thinking.type != "disabled"} if body.thinking else {}
    return ChatPrompt([*system, *turns], () if hidden else tools, options)


def rules_of(body: CountRequest, prompt: ChatPrompt, state: ServerState) -> ToolCallRules | None:
    """Return the rules for tool calls in the reply, or None if there are no tools."""
    choice, name, many = body.tool_choice, None, True
    if choice:
        if (choice.type == "tool") != (choice.name is not None):
            raise _bad("tool_choice.name", 'must be set with type "tool", and only then')
        name, many = choice.name, not choice.disable_parallel_tool_use
    must = choice is not None and choice.type in ("any", "tool")
    return call_rules(prompt.tools, state.tool_style, must=must, name=name, many=many)


def _definition(tool: Tool, place: str) -> dict[str, Any]:
    check_schema(tool.input_schema, f"{place}.input_schema")
    function = {"name": tool.name, "parameters": clean(tool.input_schema, f"{place}.input_schema", str)}
    if tool.description is not None:
        function["description"] = _valid(tool.description, f"{place}.description")
    return {"type": "function", "function": function | ({"strict": True} if tool.strict else {})}


def _turns(message: dict[str, Any], place: str) -> Turns:
    """Return a message as the template's turns: each tool result is one of its own."""
    role = message.get("role")
    if role not in ("user", "assistant"):
        raise _bad(
            f"{place}.role", f"must be user or assistant, got {quoted(role)}; for a system prompt use system"
        )
    content = message.get("content")
    place = f"{place}.content"
    if isinstance(content, str):
        return [{"role": role, "content": _valid(content, place)}]
    blocks = [*_blocks(content, place)]
    if role == "user" and not blocks:
        raise _bad(place, "must have at least one block")
    return [_assistant(blocks)] if role == "assistant" else _user(blocks)


def _user(blocks: Sequence[tuple[str, Any]]) -> Turns:
    turns, texts = Turns(), list[str]()
    for place, block in blocks:
        match block:
            case {"type": "text", "text": str(text)}:
                texts.append(_valid(text, f"{place}.text"))
            case {"type": "tool_result", "tool_use_id": str(id)}:
                turns += _said(texts)
                texts = []
                result = _text(block.get("content") or "", f"{place}.content")
                turns.append(
                    {"role": "tool", "tool_call_id": _valid(id, f"{place}.tool_use_id"), "content": result}
                )
            case _:
                raise _block_error(block, place, ("text", "tool_result"))
    return turns + _said(texts)


def _said(texts: Sequence[str]) -> Turns:
    return [{"role": "user", "content": "\n".join(texts)}] if texts else []


def _assistant(blocks: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    texts, calls, thoughts = list[str](), Turns(), list[str]()
    for place, block in blocks:
        match block:
            case {"type": "text", "text": str(text)}:
                texts.append(_valid(text, f"{place}.text"))
            case {"type": "tool_use", "id": str(id), "name": str(name), "input": dict(given)}:
                id, name = _valid(id, f"{place}.id"), _valid(name, f"{place}.name")
                given = clean(given, f"{place}.input", str)
                calls.append({"id": id, "type": "function", "function": {"name": name, "arguments": given}})
            case {"type": "thinking", "thinking": str(thought)}:
                thoughts.append(_valid(thought, f"{place}.thinking"))
            case {"type": "redacted_thinking"}:
                pass
            case _:
                raise _block_error(block, place, ("text", "tool_use", "thinking"))
    turn: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
    if calls:
        turn["tool_calls"] = calls
    if thoughts:
        turn["reasoning_content"] = "\n".join(thoughts)
    return turn


def _valid(text: str, place: str) -> str:
    """Check a text here: later errors count the messages for the template, which are others."""
    return checked_text(text, place, field=place)


def _text(content: Any, place: str) -> str:
    """Return a text, or text blocks joined."""
    if isinstance(content, str):
        return _valid(content, place)
    texts = list[str]()
    for inner, block in _blocks(content, place):
        match block:
            case {"type": "text", "text": str(text)}:
                texts.append(_valid(text, f"{inner}.text"))
            case _:
                raise _block_error(block, inner, ("text",))
    return "\n".join(texts)


def _blocks(content: Any, place: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(content, list):
        raise _bad(place, "must be a string or a list of content blocks")
    for n, block in enumerate(content):
        yield f"{place}[{n}]", block


def _block_error(block: Any, place: str, kinds: Sequence[str]) -> ApiError:
    """Return the error for a block that is none of these kinds, or is one in another form."""
    kind = str(block.get("type")) if isinstance(block, dict) else "not an object"
    if kind in kinds:
        return _bad(place, f"must have the form {_FORMS[kind]}")
    if kind in ("image", "document"):
        return _bad(place, f"has type {kind!r}; this engine supports only text")
    return _bad(f"{place}.type", f"must be {' or '.join(kinds)} here, got {kind[:80]!r}")


def _bad(place: str, problem: str) -> ApiError:
    return ApiError(400, f"{place} {problem}", param=place)
