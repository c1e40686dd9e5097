"""pyproject.toml names every package that is imported, and none that is not."""

import ast
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
OURS = {path.name for path in ROOT.iterdir() if path.is_dir()} | {"install"}
PROGRAM, OTHERS = ("minichat", "engine"), ("tests", "benchmarks", "training", "docs")
BY_NAME = {  # nothing imports these: a program runs them, or another package looks whether they are there
    "hatchling", "httptools", "mypy", "pytest-timeout", "pytest-xdist", "ruff", "uvloop",
}  # fmt: skip
BY_NAME |= {"bitsandbytes"}  # by importlib, with its warnings kept off the screen

ABSENT = {"flashinfer": "flashinfer-python"}  # what brings a module that need not be installed here

installed = cache(packages_distributions)


def distribution(module: str) -> str:
    return canonicalize_name(installed().get(module, [ABSENT.get(module, module)])[0])


@cache
def imported(folder: str) -> set[str]:
    """The packages of others that the files in it import, wherever in the file."""
    names: set[str] = set()
    for file in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names.update(alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.split(".")[0])
    return {distribution(name) for name in names - OURS - sys.stdlib_module_names}


@cache
def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def requirements(*extras: str) -> list[Requirement]:
    """Of the program, with these extras."""
    chosen = (line for extra in extras for line in project()["optional-dependencies"][extra])
    return [Requirement(line) for line in (*project()["dependencies"], *chosen)]


def declared(*, tests: bool) -> set[str]:
    """By the program and its extras; with `tests`, by the one that tests have, too."""
    extras = [extra for extra in project()["optional-dependencies"] if tests or extra != "test"]
    return {canonicalize_name(need.name) for need in requirements(*extras)}


@pytest.mark.parametrize("folder", [*PROGRAM, *OTHERS])
def test_what_is_imported_is_declared(folder: str) -> None:
    """Triton comes with a torch for GPUs; only tests bring it where there is none."""
    known = declared(tests=folder in OTHERS) | {"triton"}
    assert imported(folder) - known == set()


def test_what_is_declared_for_this_machine_is_installed() -> None:
    """So no test is skipped for lack of a package that belongs to the standard installation or to tests."""
    for need in requirements("test"):
        if need.marker is None or need.marker.evaluate():
            assert need.specifier.contains(version(need.name), prereleases=True), need


def test_what_is_declared_is_used() -> None:
    used = set().union(*map(imported, (*PROGRAM, *OTHERS)))
    assert declared(tests=True) - used - BY_NAME == set()
