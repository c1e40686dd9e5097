"""`@file` in a prompt: which files are meant, what may go along, and which names a person may be typing."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path, PurePath

from minichat.chats.model import Attachment
from minichat.models.progress import size

MOST = 1_000_000  # bytes in all that go with one message
PIPED = "stdin"  # what was piped into the program, as if it were a file of that name
_OFFERED = 200  # names at most, of which a person sees the first
_LOOKED_AT = 5000  # entries of a folder

_AT = r"(?<![^\s(\[{<,;:'`])@"  # an address like me@home is none
_MENTION = re.compile(_AT + r'(?:"(?P<quoted>[^"\n]+)"|(?P<bare>[^\s"@]+))')
_TYPING = re.compile(_AT + r'(?:"(?P<quoted>[^"\n]*)|(?P<bare>[^\s"@]*))$')
_PUNCTUATION = ".,;:!?)]}>'`"
_LIKE_A_FILE = re.compile(r"[\w./~-]*\w\.[A-Za-z0-9]{1,4}")
_ALIKE = 0.8  # how much of two names has to be the same
_SURE = ("/", "./", "../", "~")  # beginnings of what can only be meant as a path


class CannotAttach(Exception):
    """A sentence for the person, with the name in it."""


def attach(text: str, kept: Sequence[Attachment] = ()) -> tuple[Attachment, ...]:
    """The files that the text names, each once. What could be a name but leads nowhere stays mere text.

    `kept` are texts that may have no file any more: those of the message that this one replaces.
    """
    old = {each.name: each for each in kept}
    found: dict[str, Attachment] = {}
    for mention in _MENTION.finditer(text):
        name, path = _meant(mention)
        if name in old and (name == PIPED or not _there(path)):
            found[name] = old[name]
        elif _there(path):
            found.setdefault(name, Attachment(name, _read(name, path)))
        elif mention["quoted"] or name.startswith(_SURE):
            wrong = _missing(mention, name)
            raise CannotAttach(f"there is no file {wrong.name}, so nothing was sent{wrong.hint}")
    total = sum(len(each.text.encode()) for each in found.values())
    if total > MOST:
        raise CannotAttach(f"{', '.join(found)} are {size(total)} together; {size(MOST)} can be attached")
    return tuple(found.values())


@dataclass(frozen=True, slots=True)
class Missing:
    """A name behind an @ that looks like a file's, and leads nowhere."""

    name: str
    near: str = ""  # a file that is there and has almost that name

    @property
    def hint(self) -> str:
        return f"; did you mean {self.near}?" if self.near else ""


def missing(text: str, kept: Sequence[Attachment] = ()) -> tuple[Missing, ...]:
    """Names that a person may have mistyped. `@dataclass` is none, unless a file is called almost that."""
    old = {each.name for each in kept}
    wrong: dict[str, Missing] = {}
    for mention in _MENTION.finditer(text):
        name, path = _meant(mention)
        if name not in old and not _there(path):
            found = _missing(mention, name)
            sure = mention["quoted"] or name.startswith(_SURE)
            if sure or found.near or _LIKE_A_FILE.fullmatch(found.name):
                wrong.setdefault(found.name, found)
    return tuple(wrong.values())


def _missing(mention: re.Match[str], name: str) -> Missing:
    """With the nearest name in the folder, by its whole or without its ending."""
    name = name if mention["quoted"] else name.rstrip(_PUNCTUATION)
    above = folder_of(name)
    known = {form: each for each, _ in entries(above) for form in (PurePath(each).stem, each)}
    near = get_close_matches(name.removeprefix(above), known, n=1, cutoff=_ALIKE)
    return Missing(name, f"{above}{known[near[0]]}" if near else "")


def text_of(name: str, data: bytes) -> str:
    """What can be read; anything else is refused by name."""
    if len(data) > MOST:
        raise CannotAttach(f"{name} is larger than the {size(MOST)} that can be attached")
    if b"\0" not in data:
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError:
            pass
    raise CannotAttach(f"{name} is not text (UTF-8), so it cannot be attached")


def _meant(mention: re.Match[str]) -> tuple[str, Path]:
    """The name and where it leads; the end of a sentence is no part of a name that is there without it."""
    name = mention["quoted"] or mention["bare"]
    if mention["bare"]:
        shorter = name
        while shorter and not (_there(_path(shorter)) or shorter == PIPED):
            shorter = shorter[:-1] if shorter[-1] in _PUNCTUATION else ""
        name = shorter or name
    return name, _path(name)


def _path(name: str) -> Path:
    try:
        return Path(os.path.expanduser(name))
    except ValueError:  # no user is called so
        return Path(name)


def _there(path: Path) -> bool:
    """False for any text that cannot be a path, where pathlib would raise."""
    return os.path.exists(path) and path.name != "" and path.parts != ("..",)


def _read(name: str, path: Path) -> str:
    if path.is_dir():
        raise CannotAttach(f"{name} is a folder: name the files in it")
    if not path.is_file():
        raise CannotAttach(f"{name} is no plain file, so it cannot be attached")
    try:
        with path.open("rb") as file:
            return text_of(name, file.read(MOST + 1))
    except OSError as error:
        raise CannotAttach(f"{name} cannot be read: {error.strerror}") from error


# Completion

Entry = tuple[str, bool]  # of a folder: its name, and whether it is a folder itself


@dataclass(frozen=True, slots=True)
class Offer:
    """A name that fits what is being typed, and the text that takes its place."""

    name: str
    insert: str  # from the @ to the end of the name
    folder: bool = False


@dataclass(frozen=True, slots=True)
class TypedName:
    """A name on its way: where its @ stands in the line, and what is there behind it."""

    start: int
    name: str


def typing(before: str) -> TypedName | None:
    """What is being typed, if the line up to the cursor ends in a name."""
    found = _TYPING.search(before)
    return TypedName(found.start(), found["quoted"] or found["bare"] or "") if found else None


def folder_of(name: str) -> str:
    """The part of a name whose entries may complete it."""
    above, slash, _ = name.rpartition("/")
    return above + slash


def entries(folder: str) -> list[Entry]:
    """What is in a folder, and which of that are folders. Takes as long as the file system does."""
    try:
        with os.scandir(_path(folder)) as found:
            return [(each.name, each.is_dir()) for each, _ in zip(found, range(_LOOKED_AT), strict=False)]
    except (OSError, ValueError):
        return []


def offers(name: str, entries: Sequence[Entry]) -> list[Offer]:
    """Entries of its folder that begin so, then those that have it within; none where it is complete."""
    above = folder_of(name)
    last = name.removeprefix(above)
    wanted = last.lower()
    fitting = [
        (not entry.lower().startswith(wanted), entry.lower(), entry, folder)
        for entry, folder in entries
        if wanted in entry.lower() and not (entry.startswith(".") and not last.startswith("."))
    ]
    if [each[2] for each in fitting] == [last] and not fitting[0][3]:
        return []
    return [_offer(f"{above}{each}", folder) for _, _, each, folder in sorted(fitting)[:_OFFERED]]


def _offer(path: str, folder: bool) -> Offer:
    name = path + "/" if folder else path
    if not re.search(r"[\s\"@]", name):
        return Offer(name, f"@{name}" if folder else f"@{name} ", folder)
    return Offer(name, f'@"{name}' if folder else f'@"{name}" ', folder)
