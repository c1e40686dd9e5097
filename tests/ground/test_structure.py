"""No import cycles, long files, crowded folders, or classes with the same name."""

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.ground.circles import circles

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("engine", "minichat", "benchmarks", "training")
MOST_LINES, MOST_FILES = 400, 20


@pytest.mark.parametrize("package", ["engine", "minichat"])
def test_no_import_cycles(package: str) -> None:
    """Imports for types count, too. If one is unavoidable, list it here with the reason."""
    assert circles(ROOT / package) == set()


def test_the_screen_names_no_feature() -> None:
    named = {
        str(file.relative_to(ROOT)): found
        for file in (ROOT / "minichat" / "ui").rglob("*.py")
        if (found := set(re.findall(r"minichat\.features[\w.]*", file.read_text(encoding="utf-8"))))
    }
    assert set().union(*named.values()) <= {"minichat.features.feature"}, named


def test_no_file_is_long() -> None:
    files = {
        str(file.relative_to(ROOT)): len(file.read_text(encoding="utf-8").splitlines())
        for folder in (*PACKAGES, "tests")
        for file in (ROOT / folder).rglob("*.py")
    }
    assert {file: lines for file, lines in files.items() if lines > MOST_LINES} == {}


def test_no_folder_is_crowded() -> None:
    folders = Counter(
        str(file.parent.relative_to(ROOT))
        for name in (*PACKAGES, "tests")
        for file in (ROOT / name).rglob("*.py")
    )
    assert {folder: files for folder, files in folders.items() if files > MOST_FILES} == {}


def test_public_class_names_are_unique() -> None:
    classes = Counter(
        name
        for package in ("engine", "minichat")
        for file in (ROOT / package).rglob("*.py")
        for name in re.findall(r"^class ([A-Z]\w*)", file.read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert [name for name, count in classes.items() if count > 1] == []


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a": "import p.b", "b": "from p import a"}, {"p.a", "p.b"}),
        ({"a": "from .b import B", "b": "if TYPE_CHECKING:\n    from p.a import A"}, {"p.a", "p.b"}),
        (
            {"a": "def late():\n    from . import b", "b": "import p.c", "c": "import p.a"},
            {"p.a", "p.b", "p.c"},
        ),
        ({"s/__init__": "from .a import A", "s/a": "from . import B"}, {"p.s", "p.s.a"}),
        ({"s/__init__": "from .a import A", "s/a": "from .b import B", "s/b": ""}, set()),
        (
            {"s/a": "from ..b import B", "b": "from p.c import C", "c": "import torch, p.b.missing"},
            {"p.b", "p.c"},
        ),
        ({"a": "import a, p.a\nfrom . import a", "b": "import p.a"}, set()),
    ],
)
def test_cycles_are_found(tmp_path: Path, files: dict[str, str], expected: set[str]) -> None:
    package = tmp_path / "p"
    for name, source in {"__init__": "", **files}.items():
        file = package / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    assert circles(package) == ({frozenset(expected)} if expected else set())
