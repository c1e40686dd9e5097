"""The pages of docs/how/ match the code: files, quoted lines and benchmarks exist."""

import re
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).parents[2] / "docs" / "how").glob("*.md"))
TECHNIQUES = [page for page in PAGES if page.name != "README.md"]


def squeezed(code: str) -> str:
    return "\n".join(line.strip() for line in code.splitlines() if line.strip())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_file_it_names_exists(page: Path, root: Path) -> None:
    named = set(re.findall(r"`((?:engine|tests|benchmarks)/[\w./]+)`", page.read_text(encoding="utf-8")))
    assert {name for name in named if not (root / name).exists()} == set()


@pytest.mark.parametrize("page", TECHNIQUES, ids=lambda page: page.stem)
def test_every_quoted_line_is_in_the_last_named_file(page: Path, root: Path) -> None:
    before = ""
    for part in re.split(r"(```python\n.*?```)", page.read_text(encoding="utf-8"), flags=re.DOTALL):
        if part.startswith("```python"):
            file = root / re.findall(r"`(engine/[\w./]+)`", before)[-1]
            quoted = squeezed(part.removeprefix("```python").removesuffix("```"))
            assert quoted in squeezed(file.read_text(encoding="utf-8")), f"{file.name} has no such lines"
        before += part


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_member_it_names_exists(page: Path, root: Path) -> None:
    sources = [file.read_text(encoding="utf-8") for file in (root / "engine").rglob("*.py")]
    for name, member in re.findall(r"`([A-Z]\w*)\.(\w+)", page.read_text(encoding="utf-8")):
        found = (
            source for source in sources if re.search(rf"^class {name}\b|^{name} = ", source, re.MULTILINE)
        )
        assert any(re.search(rf"\b{member}\b", source) for source in found), f"{name}.{member}"


@pytest.mark.parametrize("page", TECHNIQUES, ids=lambda page: page.stem)
def test_its_figures_have_a_command(page: Path) -> None:
    """tests/bench/test_docs.py checks that it exists."""
    command = re.compile(r"^python -m benchmarks \w+ --only \w+$", re.MULTILINE)
    assert command.search(page.read_text(encoding="utf-8")), "the page has no benchmark command"


def test_every_file_that_the_architecture_names_exists(root: Path) -> None:
    """NAME is that of a new file in the lists of what to touch."""
    page = (root / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:engine|minichat|tests|benchmarks|docs|training)/[\w./]+)`", page))
    missing = {name for name in named if not (root / name).exists()}
    assert {Path(name).name for name in missing} == {"NAME.py"}


def test_the_index_lists_every_page() -> None:
    index = next(page for page in PAGES if page not in TECHNIQUES).read_text(encoding="utf-8")
    listed = re.findall(r"^\| \d+ \| \[.*?\]\((.*?)\)", index, re.MULTILINE)
    assert sorted(listed) == [page.name for page in TECHNIQUES]
