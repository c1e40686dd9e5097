"""Pages with measured figures have their commands, and the commands of the docs exist, with their options."""

import ast
import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from benchmarks.__main__ import discovered
from minichat.cli import parser
from minichat.commands.bench.arguments import QUESTIONS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FIGURE = re.compile(r"\d (?:ms|us|µs|(?:tok|tokens|[GT]B|[GT]FLOP)/s|tokens per second)\b|\d x \|")
COMMAND = re.compile(r"(python -m benchmarks|minichat bench|minichat quality) +([\w.-]+)([^\n`#|]*)")
COMMON = {"--warmup", "--repeats", "--results", "--save", "--no-save", "--help"}
STUDIES = {"attention-cpu.md"}  # its script is not kept; this list may only shrink


def commands(page: Path) -> list[tuple[str, str, set[str]]]:
    """(program, first word, options) of each command; one that ends in a backslash continues."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    text = re.sub(r"python -m\s+benchmarks", "python -m benchmarks", text)
    found = COMMAND.findall(text)
    return [
        (program, name, {word for word in shlex.split(rest.replace("'", "")) if word.startswith("--")})
        for program, name, rest in found
    ]


@cache
def options_of(file: Path) -> set[str]:
    """The options that `python -m benchmarks` makes of the keywords of run()."""
    functions = (node for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef))
    [run] = [node for node in functions if node.name == "run"]
    names = [each.arg.replace("_", "-") for each in run.args.kwonlyargs]
    return COMMON | {f"--{name}" for name in names} | {f"--no-{name}" for name in names}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_figures_have_their_command(page: Path) -> None:
    if FIGURE.search(re.sub(r"\s+", " ", page.read_text(encoding="utf-8"))):
        assert bool(commands(page)) != (page.name in STUDIES)


def test_each_section_of_results_and_of_readme_figures_has_a_command() -> None:
    for page in (ROOT / "README.md", ROOT / "docs" / "results.md"):
        for section in re.split(r"\n(?=##+ )", page.read_text(encoding="utf-8")):
            if re.search(r"^\|.*\d", section, re.MULTILINE) and FIGURE.search(section):
                assert COMMAND.search(section), section.partition("\n")[0]


def test_the_commands_exist_with_their_options() -> None:
    known = discovered()
    top = parser()
    [subcommands] = [each for each in top._actions if hasattr(each, "_name_parser_map")]
    usual = {
        name: set(subcommands._name_parser_map[name]._option_string_actions) for name in ("bench", "quality")
    }
    wrong = []
    for page in PAGES:
        for program, name, options in commands(page):
            if program == "python -m benchmarks":
                missing = options - options_of(known[name].file) if name in known else {name}
                missing -= {"NAME"}
            elif program == "minichat bench":
                missing = (options - usual["bench"]) | ({name} - QUESTIONS.keys() - {"QUESTION"})
            else:
                missing = options - usual["quality"]
            wrong += [f"{page.name}: {program} {name}: {each}" for each in missing]
    assert wrong == []
