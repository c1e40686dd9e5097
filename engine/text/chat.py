"""Conversations rendered with the model's chat template and tokenized."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Self

from engine.api.errors import BadInput, TemplateError
from engine.api.layout import PromptLayout
from engine.text.contents import contents, places
from engine.text.guard import MARK, Guard
from engine.text.messages import clean, clean_messages, clean_tools
from engine.text.template import TemplateRenderer
from engine.text.tokenizer import Tokenizer

RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message", "documents"})
END = "\ufdd1"  # marks where the final message's text ends; a Unicode noncharacter, as guard.MARK is


class ChatFormat:
    """The chat templates of one tokenizer, and the helper process that renders them."""

    def __init__(self, tokenizer: Tokenizer, renderer: TemplateRenderer | None = None) -> None:
        self.tokenizer = tokenizer
        self._renderer = renderer or TemplateRenderer()
        self._guard = lru_cache(maxsize=4)(lambda template: Guard(tokenizer, template))

    @property
    def has_template(self) -> bool:
        return bool(self.tokenizer.templates)

    def prompt(
        self, messages: Sequence[Any], tools: Sequence[Any] | None = None, **options: Any
    ) -> list[int]:
        """Return the tokens of the rendered conversation. Only the template adds start tokens."""
        parts = self._render(messages, tools, options).split(MARK)
        return [token for part in parts for token in self.tokenizer.encode(part)]

    def layout(self, messages: Sequence[Mapping[str, Any]]) -> PromptLayout:
        """Return the same tokens, with the characters of the messages that they cover."""
        parts = self._render(messages, None, {}).split(MARK)
        ids: list[int] = []
        spans: list[tuple[int, int]] = []
        begin = 0
        for part in parts:
            for token, start, end in self.tokenizer.encode_placed(part):
                ids.append(token)
                spans.append((begin + start, begin + end))
            begin += len(part)
        found = contents(messages, "".join(parts), self.text)
        return PromptLayout(tuple(ids), places(spans, found))

    def text(self, messages: Sequence[Any], tools: Sequence[Any] | None = None, **options: Any) -> str:
        """Return the rendered conversation, for display. Use `prompt` for its tokens."""
        return self._render(messages, tools, options).replace(MARK, "")

    def close(self) -> None:
        self._renderer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _render(self, messages: Sequence[Any], tools: Sequence[Any] | None, options: dict[str, Any]) -> str:
        template = self._template(bool(tools))
        guard = self._guard(template)
        break_up = guard.breaker("user")
        documents = options.pop("documents", None)
        continued = options.pop("continue_final_message", False)
        generate = options.pop("add_generation_prompt", not continued)
        if continued and generate:
            raise BadInput("continue_final_message and add_generation_prompt cannot both be true")
        cleaned = clean_messages(messages, guard.breaker)
        if continued:
            cleaned[-1]["content"] = (cleaned[-1].get("content") or "") + END
        values = {
            **self.tokenizer.special_names,
            **clean(options, "template options", break_up),
            "messages": cleaned,
            "tools": clean_tools(tools, break_up),
            "documents": clean(documents, "documents", break_up),
            "add_generation_prompt": bool(generate),
        }
        text = self._renderer.render(template, values)
        return _until_end(text) if continued else text

    def _template(self, with_tools: bool) -> str:
        templates = self.tokenizer.templates
        for name in ("tool_use", "default") if with_tools else ("default",):
            if name in templates:
                return templates[name]
        if not templates:
            raise TemplateError("this model has no chat template; use text completion (raw)")
        raise TemplateError(
            f"this model has no chat template named default, only {', '.join(sorted(templates))}"
        )


def _until_end(text: str) -> str:
    """Cut a rendered conversation where the text of its final message ends."""
    before, found, _ = text.rpartition(END)
    if not found:
        raise TemplateError(
            "the chat template leaves out the text of the final message, so it cannot continue it"
        )
    return before
