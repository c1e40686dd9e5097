"""pyproject.toml lists every package that is imported, and no others."""

import re
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
BY_NAME = {  # never imported: run as programs, or only detected by another package
    "hatchling", "httptools", "mypy", "pytest-timeout", "pytest-xdist", "ruff", "uvloop",
}  # fmt: skip
BY_NAME |= {"bitsandbytes"}  # imported through importlib, to silence its warnings
BY_OTHERS = {"agents", "litellm"}  # imported by scripts that another Python runs (tests/server/clients)

# Parsing all files takes seconds. Ruff allows one import a line, so a line is enough.
IMPORT = re.compile(
    r"^[ \t]*(?:import (\w+)[.\w]*(?: as \w+)?[ \t]*(?:#.*)?$|from (\w+)[.\w]* import\b)", re.MULTILINE
)

ABSENT = {"flashinfer": "flashinfer-python"}  # the package that provides a module which may be missing here

installed = cache(packages_distributions)


def distribution(module: str) -> str:
    return canonicalize_name(installed().get(module, [ABSENT.get(module, module)])[0])


@cache
def imported(folder: str) -> set[str]:
    """The third-party packages that files in the folder import, anywhere in a file, a string included."""
    names: set[str] = set()
    for file in (ROOT / folder).rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        names.update(re.findall(r'\blazy\("(\w+)', text))  # tests/lazily.py
        names.update(found for pair in IMPORT.findall(text) for found in pair)
    return {distribution(name) for name in names - OURS - sys.stdlib_module_names - {""}}


@cache
def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def requirements(*extras: str) -> list[Requirement]:
    """The requirements of the program with these extras."""
    chosen = (line for extra in extras for line in project()["optional-dependencies"][extra])
    return [Requirement(line) for line in (*project()["dependencies"], *chosen)]


def declared(*, tests: bool) -> set[str]:
    """The packages required by the program and its extras, including the extra for tests if `tests`."""
    extras = [extra for extra in project()["optional-dependencies"] if tests or extra != "test"]
    return {canonicalize_name(need.name) for need in requirements(*extras)}


@pytest.mark.parametrize("folder", [*PROGRAM, *OTHERS])
def test_imported_packages_are_declared(folder: str) -> None:
    """Triton is installed with a torch for GPUs; on other machines only the tests need it."""
    known = declared(tests=folder in OTHERS) | {"triton"}
    assert imported(folder) - known == (BY_OTHERS if folder == "tests" else set())


def test_required_packages_are_installed() -> None:
    """Otherwise tests would be skipped although their package is part of the installation."""
    for need in requirements("test"):
        if need.marker is None or need.marker.evaluate():
            assert need.specifier.contains(version(need.name), prereleases=True), need


def test_declared_packages_are_imported() -> None:
    used = set().union(*map(imported, (*PROGRAM, *OTHERS)))
    assert declared(tests=True) - used - BY_NAME == set()
