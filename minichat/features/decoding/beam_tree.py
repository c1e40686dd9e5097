"""A beam search as a tree of text: hypotheses share their common prefix, and each end has a score."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from math import inf
from typing import Literal, NamedTuple

from engine.api.snapshot import BeamsView, HypothesisView
from minichat.ui.marks import UNICODE

Kind = Literal["branch", "live", "ended", "dropped"]
Words = Callable[[Sequence[int]], list[str]]
MOST_DROPPED = 3  # dropped hypotheses to list


class TreeLine(NamedTuple):
    """One line: its place in the tree (one character per level), its text, and the score of an end."""

    hangs: str  # "|": a branch above continues, " ": none does, "+": one begins here, "`": the last one
    text: str
    kind: Kind
    score: float | None = None
    leads: bool = False


@dataclass(slots=True)
class _Node:
    children: dict[int, "_Node"] = field(default_factory=dict)
    ends: list[tuple[Kind, float]] = field(default_factory=list)
    best: float = -inf  # the highest score of the hypotheses that end here or below


def lines_of(view: BeamsView, words: Words, gap: str = UNICODE.ellipsis) -> list[TreeLine]:
    """Return live and ended hypotheses as a tree, best first, then the dropped ones.

    `gap`: shown for tokens whose text is not there yet.
    """
    root = _Node()
    for kind, hypotheses in (("live", view.live), ("ended", view.done)):
        for each in hypotheses:
            node = root
            for token in each.tokens:
                node = node.children.setdefault(token, _Node())
                node.best = max(node.best, each.score)
            node.ends.append((kind, each.score))  # type: ignore[arg-type]
    texts = _texts((*view.live, *view.done, *view.dropped), words)
    text = partial(_text, texts=texts, gap=gap)
    lines = [TreeLine("", "", *end) for end in root.ends]
    _add_lines(root, "", text, lines)
    best = max((line.score for line in lines if line.score is not None), default=None)
    best_at = next((at for at, line in enumerate(lines) if line.score == best), None)
    if best_at is not None:
        lines[best_at] = lines[best_at]._replace(leads=True)
    dropped = sorted(view.dropped, key=lambda each: -each.score)[:MOST_DROPPED]
    return [*lines, *(TreeLine("", text(each.tokens), "dropped", each.score) for each in dropped)]


def _add_lines(node: _Node, above: str, text: Callable[[Sequence[int]], str], lines: list[TreeLine]) -> None:
    children = sorted(node.children.items(), key=lambda pair: -pair[1].best)
    for number, (token, child) in enumerate(children):
        last = number == len(children) - 1
        tokens = [token]
        while not child.ends and len(child.children) == 1:
            ((token, child),) = child.children.items()
            tokens.append(token)
        line = TreeLine(above + ("`" if last else "+"), text(tokens), "branch")
        below = above + (" " if last else "|")
        ends = [TreeLine(below, "", kind, score) for kind, score in child.ends]
        if ends:  # the first end shares the line of its text
            ends[0] = ends[0]._replace(hangs=line.hangs, text=line.text)
        lines += ends or [line]
        _add_lines(child, below, text, lines)


def _texts(hypotheses: Iterable[HypothesisView], words: Words) -> dict[int, str]:
    tokens = sorted({token for each in hypotheses for token in each.tokens})
    return dict(zip(tokens, words(tokens), strict=True))


def _text(tokens: Sequence[int], texts: dict[int, str], gap: str) -> str:
    """The text of these tokens. Successive ones without a text are one gap."""
    runs = groupby(tokens, lambda token: bool(texts[token]))
    return "".join("".join(texts[token] for token in run) if known else gap for known, run in runs)
