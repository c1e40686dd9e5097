"""Syntax highlighting. A lexer is loaded in a thread; until then its code is plain."""

from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING

from minichat.ui.transcript.markdown.inline import Run

if TYPE_CHECKING:
    from pygments.lexer import Lexer  # type: ignore[import-untyped]

# The first matching prefix of a token type decides.
_LOOKS = (
    ("Comment", "comment"),
    ("Keyword", "keyword"),
    ("Operator.Word", "keyword"),
    ("Literal.String", "string"),
    ("Literal.Number", "number"),
    ("Name.Function", "function"),
    ("Name.Class", "function"),
    ("Name.Decorator", "function"),
    ("Name.Tag", "keyword"),
    ("Name.Builtin", "builtin"),
    ("Name.Attribute", "builtin"),
    ("Generic.Inserted", "inserted"),
    ("Generic.Deleted", "deleted"),
    ("Generic.Heading", "function"),
    ("Generic.Subheading", "function"),
)
SYNTAX = tuple(dict.fromkeys(look for _, look in _LOOKS))

_lexers: dict[str, "Lexer | None"] = {}
_lock = Lock()


def known(language: str) -> bool:
    """Whether the language needs no loading: its lexer is loaded or does not exist."""
    return not language or language in _lexers


def load(language: str) -> None:
    """Load a language's lexer. This takes up to 100 ms, so do not call it on the screen's thread."""
    from pygments.lexers import get_lexer_by_name  # type: ignore[import-untyped]
    from pygments.util import ClassNotFound  # type: ignore[import-untyped]

    with _lock:
        if language not in _lexers:
            try:
                _lexers[language] = get_lexer_by_name(language.lower(), stripnl=False, ensurenl=False)
            except ClassNotFound:
                _lexers[language] = None
    highlighted.cache_clear()


def runs_of(code: str, language: str, growing: bool) -> tuple[Run, ...]:
    """Highlight code. While it grows its last line stays plain, so that the lexer runs once per line."""
    if not growing:
        return highlighted(code, language)
    if _lexers.get(language) is None:
        return (Run(code),)
    whole = code.rfind("\n") + 1
    runs = highlighted(code[:whole], language) if whole else ()
    return (*runs, Run(code[whole:])) if whole < len(code) else runs


@lru_cache(maxsize=256)
def highlighted(code: str, language: str) -> tuple[Run, ...]:
    lexer = _lexers.get(language)
    if lexer is None:
        return (Run(code),)
    runs: list[Run] = []
    for kind, text in lexer.get_tokens(code):
        look = _look(str(kind))
        if runs and runs[-1].look == look:
            runs[-1] = Run(runs[-1].text + text, look)
        elif text:
            runs.append(Run(text, look))
    # A lexer that changes the text would shift all character offsets.
    return tuple(runs) if "".join(run.text for run in runs) == code else (Run(code),)


@lru_cache(maxsize=512)
def _look(kind: str) -> tuple[str, ...]:
    return next(((look,) for prefix, look in _LOOKS if kind.startswith(f"Token.{prefix}")), ())
