"""Inline markup: turns a paragraph's emphasis, code and links into runs of styled text."""

import re
from functools import lru_cache
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline

from minichat.ui.transcript.glyphs import drawable

MAX_BRACKETS = 40  # text with more is not parsed: it is noise that would be slow
MAX_MARKS = 250
_MARK = re.compile(r"[*_`\[<&\\~]")
_ADDRESS = re.compile(r"\bhttps?://[^\s<>\"'`]*[^\s<>\"'`.,;:!?)\]}*_]")
_OPENS = {"strong_open": "strong", "em_open": "em", "s_open": "strike"}
_CLOSES = {"strong_close", "em_close", "s_close"}


# Between \( and \), \[ and \], $$ and $$, or single $ by pandoc's rules, so that "$5" is not a formula.
_FORMULA = re.compile(
    r"\\\(.{1,999}?\\\)|\\\[.{1,999}?\\\]|\$\$.{1,999}?\$\$|\$(?![\s$])[^$\n]{0,999}(?<![\s\\])\$(?!\d)",
    re.DOTALL,
)


def _formula(state: StateInline, silent: bool) -> bool:
    """A markdown-it rule that keeps a formula as written: in it \\, and _ are not markup."""
    if (found := _FORMULA.match(state.src, state.pos, state.posMax)) is None:
        return False
    if not silent:
        state.push("formula", "", 0).content = found.group().replace("\n", " ")
    state.pos = found.end()
    return True


# Creating it takes 40 ms, so do it at import rather than at the first use.
_parser = MarkdownIt("commonmark", {"html": False}).enable("strikethrough")
_parser.inline.ruler.before("escape", "formula", _formula)


class Run(NamedTuple):
    """A stretch of text in one style."""

    text: str
    look: tuple[str, ...] = ()
    link: str | None = None


@lru_cache(maxsize=2048)
def parse(source: str) -> tuple[Run, ...]:
    """Parse a paragraph's source into runs. A line break becomes a space; invalid markup stays as text."""
    source = source.replace("\t", " ")
    if not _MARK.search(source):
        return tuple(_with_addresses(_unfold(source), (), None))
    brackets = source.count("[")
    if brackets > MAX_BRACKETS or brackets + sum(map(source.count, "*_`<&\\~")) > MAX_MARKS:
        return (Run(drawable(source)),)
    runs: list[Run] = []
    looks: list[str] = []
    links: list[str] = []
    for token in _parser.parseInline(source)[0].children or ():
        kind = token.type
        link = links[-1] if links else None
        if kind in ("text", "formula"):
            runs += _with_addresses(drawable(token.content), tuple(looks), link)
        elif kind in _OPENS:
            looks.append(_OPENS[kind])
        elif kind in _CLOSES:
            looks.pop()
        elif kind == "code_inline":
            runs.append(Run(drawable(token.content), (*looks, "code"), link))
        elif kind == "link_open":
            links.append(str(token.attrs["href"]))
        elif kind == "link_close":
            links.pop()
        elif kind == "image":
            runs.append(Run(drawable(f"[{token.content}]"), tuple(looks), str(token.attrs["src"])))
        else:
            runs.append(Run("\n" if kind == "hardbreak" else " ", tuple(looks), link))
    return tuple(run for run in runs if run.text)


def as_written(source: str) -> tuple[Run, ...]:
    """The runs of text without markup: lines and spaces are kept, URLs are links."""
    return tuple(_with_addresses(drawable(source.expandtabs(4)), (), None))


def _unfold(source: str) -> str:
    """Join plain lines; two trailing spaces keep a break."""
    lines = source.split("\n")
    return "".join(
        drawable(line.strip(" ")) + ("\n" if line.endswith("  ") else " ") for line in lines[:-1]
    ) + drawable(lines[-1].strip(" "))


def _with_addresses(text: str, looks: tuple[str, ...], link: str | None) -> list[Run]:
    """Split text into runs in which bare URLs are links."""
    if link is not None or "://" not in text:
        return [Run(text, looks, link)] if text else []
    runs, at = [], 0
    for found in _ADDRESS.finditer(text):
        runs += [Run(text[at : found.start()], looks), Run(found.group(), looks, found.group())]
        at = found.end()
    return [run for run in (*runs, Run(text[at:], looks)) if run.text]
