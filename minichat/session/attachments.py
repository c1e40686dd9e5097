"""`@file` in a prompt: attaching files, and completing their names."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path, PurePath

from minichat.chats.model import Attachment
from minichat.models.progress import size
from minichat.shell.filesystems import is_folder

MOST = 1_000_000  # total bytes per message
PIPED = "stdin"  # the attachment name of piped input
_OFFERED = 200  # maximum names to offer; only the first are visible
_LOOKED_AT = 5000  # entries of a folder to examine

_AT = r"""(?<![^\s(\[{<,;:'`"“„«*–—])@"""  # not in an address like me@home
_QUOTED = r"""(?P<quote>["'])(?P<quoted>(?:(?!(?P=quote))[^\n])+)(?P=quote)"""
_MENTION = re.compile(_AT + rf'(?:{_QUOTED}|(?P<bare>[^\s"@]+))')
_TYPING = re.compile(_AT + r'(?:"(?P<quoted>[^"\n]*)|(?P<bare>[^\s"@]*))$')
_PUNCTUATION = ".,;:!?)]}>'`”“»*…"
_LIKE_A_FILE = re.compile(r"[\w./~-]*\w\.[A-Za-z0-9]{1,4}")
_ALIKE = 0.8  # minimum similarity of two names
_REPORTED = 4  # missing files that are named at once
_COMPARED = 30  # names that are looked for in their folder
_VARIABLE = re.compile(r"\$([A-Za-z_]\w*|\{\w+\})/")  # of the shell: not replaced here
_SURE = ("/", "./", "../", "~")  # prefixes that always mean a path


class CannotAttach(Exception):
    """A file cannot be attached. The message contains its name."""


def attach(text: str, kept: Sequence[Attachment] = (), *, warned: bool = False) -> tuple[Attachment, ...]:
    """Return the files that the text mentions, once each. A mention that cannot be a file stays plain text.

    `kept` holds attachments whose files may no longer exist: those of the message being edited.
    `warned`: the user knows what is `missing`, so folders and paths that do not exist stay text, too.
    """
    old = {each.name: each for each in kept}
    found: dict[str, Attachment] = {}
    for mention in _MENTION.finditer(text):
        name, path = _mentioned(mention)
        if name in old and (name == PIPED or not _there(path)):
            found[name] = old[name]
        elif _there(path):
            if not (path.is_dir() and (warned or _is_word(mention, name, path))):
                found.setdefault(name, Attachment(name, _read(name, path)))
        elif not warned and (mention["quoted"] or name.startswith(_SURE)):
            wrong = _missing(mention, name)
            raise CannotAttach(f"nothing was sent: {wrong}")
    total = sum(len(each.text.encode()) for each in found.values())
    if total > MOST:
        raise CannotAttach(f"{', '.join(found)} are {size(total)} in total; the limit is {size(MOST)}")
    return tuple(found.values())


def mentioned(text: str) -> tuple[str, ...]:
    """The existing files that the text mentions, which are not read."""
    found = (_mentioned(mention) for mention in _MENTION.finditer(text))
    return tuple(dict.fromkeys(name for name, path in found if os.path.isfile(path)))


def listed(files: Sequence[Attachment]) -> str:
    """Their names and sizes."""
    return ", ".join(f"{each.name} ({size(len(each.text.encode()))})" for each in files)


@dataclass(frozen=True, slots=True)
class Missing:
    """A mention that looks like a file name but matches no file."""

    name: str
    near: str = ""  # an existing file with a similar name
    folder: bool = False  # it is the name of a folder

    def __str__(self) -> str:
        if self.folder:
            return f"{self.name} is a folder; name the files in it"
        if self.near == self.name:
            return f"{self.name} is a link to a file that does not exist"
        return f"no such file: {self.name}" + (f"; did you mean {self.near}?" if self.near else "")

    @property
    def sent_without(self) -> str:
        """The warning where the user cannot be asked."""
        return f"{self.sentence} Sent without it"

    @property
    def sentence(self) -> str:
        return f"{self}{'' if str(self).endswith('?') else '.'}"


def missing(text: str, kept: Sequence[Attachment] = ()) -> tuple[Missing, ...]:
    """The first mentions that may be mistyped. `@dataclass` counts only if a file has almost this name,
    and `@types/node` only if there is a folder `types`, or one of almost this name.

    Only a few: each is compared with all names of its folder, and pasted code may have hundreds.
    """
    seen = {each.name for each in kept}
    most = len(seen) + _COMPARED
    wrong: dict[str, Missing] = {}
    for mention in _MENTION.finditer(text):
        name, path = _mentioned(mention)
        if name not in seen and _there(path) and path.is_dir():
            seen.add(name)
            wrong[name] = Missing(name, folder=True)
        elif name not in seen and not _there(path):
            seen.add(name)
            found = _missing(mention, name)
            sure = mention["quoted"] or name.startswith(_SURE) or _VARIABLE.match(name) or _in_a_folder(name)
            if sure or found.near or _LIKE_A_FILE.fullmatch(found.name):
                wrong.setdefault(found.name, found)
        if len(wrong) == _REPORTED or len(seen) == most:
            break
    return tuple(wrong.values())


def _in_a_folder(name: str) -> bool:
    """Whether it is in a folder that exists, unlike `@types/node`."""
    first, slash, _ = name.partition("/")
    return bool(slash) and _there(_path(first)) and _path(first).is_dir()


def _is_word(mention: re.Match[str], name: str, path: Path) -> bool:
    """Whether a folder is named like a word of prose: `thank the @docs team`."""
    return not mention["quoted"] and "/" not in name and path.is_dir()


def _missing(mention: re.Match[str], name: str) -> Missing:
    """Find the most similar name in the folder, with or without its extension, in any case."""
    name = name if mention["quoted"] else name.rstrip(_PUNCTUATION)
    if os.path.isdir(_path(name)):
        return Missing(name, folder=True)
    if _VARIABLE.match(name) and _there(Path(path := os.path.expandvars(name))):
        return Missing(name, _quoted(path))
    above = folder_of(name)
    there = _nearest_folder(above) or above
    last, listed = name.removeprefix(above), [each for each, _ in entries(there)]
    known = {form.lower(): each for each in listed for form in (PurePath(each).stem, each)}
    near = get_close_matches(last.lower(), known, n=1, cutoff=_ALIKE)
    if near:
        found = f"{there}{last if last in listed else known[near[0]]}"
        return Missing(name, found if found == name else _quoted(found))
    if there != above:
        return Missing(name, _quoted(there))
    typed, start = mention.string, mention.start() + 1
    blank = (f"{above}{each}" for each in known.values() if " " in each)
    meant = (each for each in blank if typed.startswith((each, each.replace(" ", "\\ ")), start))
    return Missing(name, _quoted(next(meant, "")))  # the second form is that of a shell


def _nearest_folder(folder: str) -> str:
    """The folder, with those of most similar names for its parts that do not exist; empty if one has none."""
    found = ""
    for part in folder.split("/")[:-1]:
        if not os.path.isdir(_path(found + part)):
            known = {each.lower(): each for each, is_one in entries(found) if is_one}
            swapped = (each for each in known if sorted(each) == sorted(part.lower()))
            near = get_close_matches(part.lower(), known, n=1, cutoff=_ALIKE) or [*swapped]
            if not near:
                return ""
            part = known[near[0]]
        found += f"{part}/"
    return found


def text_of(name: str, data: bytes) -> str:
    """Decode the text, or refuse the file by name."""
    if len(data) > MOST:
        raise CannotAttach(f"{name} is larger than {size(MOST)}, the limit for attachments")
    if b"\0" not in data:
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError:
            pass
    raise CannotAttach(f"cannot attach {name}: it is not UTF-8 text")


def _mentioned(mention: re.Match[str]) -> tuple[str, Path]:
    """The name and its path. Trailing punctuation is dropped if the file exists without it."""
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
    except ValueError:  # unknown user name
        return Path(name)


def _there(path: Path) -> bool:
    """Whether the path exists; False for text that is not a valid path, where pathlib raises."""
    return os.path.exists(path) and path.name != "" and path.parts != ("..",)


def _read(name: str, path: Path) -> str:
    if path.is_dir():
        raise CannotAttach(f"{name} is a folder; name the files in it")
    if not path.is_file():
        raise CannotAttach(f"cannot attach {name}: it is not a regular file")
    try:
        with path.open("rb") as file:
            return text_of(name, file.read(MOST + 1))
    except OSError as error:
        raise CannotAttach(f"cannot read {name}: {error.strerror}") from error


# Completion

Entry = tuple[str, bool]  # an entry of a folder: its name, and whether it is a folder


@dataclass(frozen=True, slots=True)
class Offer:
    """A completion of the typed name."""

    name: str
    insert: str  # from the @ to the end of the name
    folder: bool = False


@dataclass(frozen=True, slots=True)
class TypedName:
    """The name being typed, and the position of its @ in the line."""

    start: int
    name: str


def typing(before: str) -> TypedName | None:
    """The name being typed, if the line up to the cursor ends in one."""
    found = _TYPING.search(before)
    return TypedName(found.start(), found["quoted"] or found["bare"] or "") if found else None


def folder_of(name: str) -> str:
    """The folder whose entries can complete a name."""
    above, slash, _ = name.rpartition("/")
    return above + slash


def entries(folder: str) -> list[Entry]:
    """The entries of a folder. May be slow on a network file system."""
    try:
        with os.scandir(_path(folder)) as found:
            return [(each.name, is_folder(each)) for each, _ in zip(found, range(_LOOKED_AT), strict=False)]
    except (OSError, ValueError):
        return []


def offers(name: str, entries: Sequence[Entry]) -> list[Offer]:
    """Entries that start with the name, then those that contain it; empty if the name is complete."""
    above = folder_of(name)
    last = name.removeprefix(above)
    needle = last.lower()
    fitting = [
        (not entry.lower().startswith(needle), entry.lower(), entry, folder)
        for entry, folder in entries
        if needle in entry.lower() and not (entry.startswith(".") and not last.startswith("."))
    ]
    if [each[2] for each in fitting] == [last] and not fitting[0][3]:
        return []
    return [_offer(f"{above}{each}", folder) for _, _, each, folder in sorted(fitting)[:_OFFERED]]


def _offer(path: str, folder: bool) -> Offer:
    name = path + "/" if folder else path
    quoted = _quoted(name)
    if quoted == name:
        return Offer(name, f"@{name}" if folder else f"@{name} ", folder)
    return Offer(name, f"@{quoted[:-1]}" if folder else f"@{quoted} ", folder)


def _quoted(name: str) -> str:
    """The name as it is written after an @."""
    if not re.search(r"[\s\"@]", name):
        return name
    return f"'{name}'" if '"' in name else f'"{name}"'
