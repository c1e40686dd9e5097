"""Each section with measured figures has its command, and the programs accept all commands of the docs."""

import argparse
import calendar
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from io import StringIO
from pathlib import Path

import pytest

from benchmarks import __main__ as benchmarks
from minichat.bench.setup import Setup
from minichat.cli import COMMANDS
from minichat.cli import parser as program

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "benchmarks" / "results" / "README.md",
    ROOT / "engine" / "pocket" / "MODEL_CARD.md",
]
FIGURE = re.compile(
    r"\d (?:ms|[uµ]s|(?:milli|micro)seconds|(?:tok|tokens|[GT]B|[GT]FLOP)/s|tokens per second)\b"
    r"|\d x \||\d\.\d+ times\b"
)
NUMBER = r"\**[-+]?[\d,.]+\**[^|\n]*"
ROW = re.compile(rf"^\|.*\| *{NUMBER}\| *{NUMBER}", re.MULTILINE)  # of a table: two numbers side by side
MEASURES = re.compile(r"python -m (benchmarks|training|tests\.)|minichat (bench|quality)|pytest|make [a-z]")
DATED = re.compile(
    rf"\b\d{{1,2}} ({'|'.join(calendar.month_name[1:])})\b|\b20\d\d-\d\d-\d\d|\bresults/|\bcommit \w+"
)
EXEMPT = {  # sections whose numbers are settings, limits, counts or examples, or link to their table
    ("README.md", "minichat"),
    ("apart.md", "The idea"),
    ("chunked-prefill.md", "A limit for the replies"),
    ("kv.md", "Compression"),
    ("server.md", "The server"),
    ("server.md", "Authentication and limits"),
    ("tiers.md", "The idea"),
}
VALUE = re.compile(r"[A-Z]$")  # stands for a number or a name


def sections(page: Path) -> list[str]:
    """The page in pieces that start with a heading. A `#` in a block of code is none."""
    found, fenced = [""], False
    for line in page.read_text(encoding="utf-8").splitlines(keepends=True):
        fenced ^= line.startswith("```")
        if re.match("#+ ", line) and not fenced:
            found.append("")
        found[-1] += line
    return found[1:]


def title(section: str) -> str:
    return section.partition("\n")[0].lstrip("# ")


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command, in blocks of code and inline."""
    text = re.sub(r"\\\n\s*", "", text)
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    rest = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    lines += re.findall(r"^    (?! )(.+)$", rest, re.MULTILINE)
    pieces = [re.split(r" {2,}|\s#", line.strip().removeprefix("$ "))[0] for line in lines]  # no remarks
    pieces += [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", rest)]
    for piece in pieces:
        for part in re.split(r" [|>] ", re.sub(r"^([A-Z_]+=\S+ )+", "", piece)):  # no variables
            if re.match(r"(python -m|minichat|make|pytest) ", part):
                yield shlex.split(part)


def measured(page: Path) -> list[str]:
    """The sections with measured figures."""
    return [
        section
        for section in sections(page)
        if (page.name, title(section)) not in EXEMPT
        and (FIGURE.search(" ".join(section.split())) or ROW.search(section))
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_section_with_figures_has_its_command(page: Path) -> None:
    lacking = [
        title(section)
        for section in measured(page)
        if not any(MEASURES.match(shlex.join(words)) for words in commands(section))
    ]
    assert lacking == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_section_with_figures_has_its_date(page: Path) -> None:
    """Or its page has, or docs/how/README.md for the pages there."""
    beginning = sections(page)[0]
    if page.parent.name == "how":
        beginning += (page.parent / "README.md").read_text(encoding="utf-8")
    assert DATED.search(beginning) or [each for each in measured(page) if not DATED.search(each)] == []


def test_the_programs_accept_the_commands() -> None:
    found = ((page, words) for page in PAGES for words in commands(page.read_text(encoding="utf-8")))
    problems = {f"{page.name}: {shlex.join(words)}": why_not(words) for page, words in found}
    assert {command: problem for command, problem in problems.items() if problem} == {}


def why_not(words: list[str]) -> str:
    """What is wrong with a command; empty if its program accepts it."""
    match words:
        case ["python", "-m", "benchmarks", name, *rest] if name != "NAME":
            return refusal(benchmark(name), rest) if name in known() else "no such benchmark"
        case ["minichat", name, _, *_] if name in COMMANDS and "QUESTION" not in words:
            return refusal(minichat(), ["1" if VALUE.match(word) else word for word in words[1:]])
        case ["make", target] if not re.search(rf"^{target}:", MAKEFILE, re.MULTILINE):
            return "no such target"
        case ["pytest", file, *_] if file.startswith("tests/") and not (ROOT / file).exists():
            return "no such file"
    return ""


MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
minichat = cache(program)
known = cache(benchmarks.discovered)


@cache
def benchmark(name: str) -> argparse.ArgumentParser:
    found = known()[name]
    return benchmarks.parser(name, found.line, import_module(found.module).run)


def refusal(parser: argparse.ArgumentParser, words: list[str]) -> str:
    with redirect_stderr(StringIO()) as said, redirect_stdout(StringIO()):
        try:
            parser.parse_args(words)
        except SystemExit as end:
            return said.getvalue().strip().rpartition("\n")[2] if end.code else ""
    return ""


def test_the_cases_of_the_commands_exist(setup: Setup) -> None:
    """Of `minichat bench QUESTION --only CASE`."""
    asked = 0
    for page in PAGES:
        for words in commands(page.read_text(encoding="utf-8")):
            if words[:2] == ["minichat", "bench"] and "--only" in words:
                names = [each.name for each in questions(words[2]).cases(setup)]
                wanted = words[words.index("--only") + 1]
                assert any(fnmatchcase(name, wanted) for name in names), f"{page.name}: {wanted}"
                asked += 1
    assert asked


def questions(name: str):  # type: ignore[no-untyped-def]
    return import_module(f"minichat.bench.questions.{name}")


@cache
def anchors(page: Path) -> set[str]:
    names = (re.sub(r"[^\w -]", "", title(section).lower()) for section in sections(page))
    return {name.strip().replace(" ", "-") for name in names}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_its_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not link.startswith("http") and not (
            target.exists() and (not anchor or anchor in anchors(target))
        ):
            broken.append(link)
    assert broken == []
