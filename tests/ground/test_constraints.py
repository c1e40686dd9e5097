"""The pinned versions cover the requirements in pyproject.toml."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

TESTED_EXTRA = "test"


@pytest.fixture(scope="module")
def pins(root: Path) -> dict[str, str]:
    lines = (root / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


@pytest.fixture(scope="module")
def required(root: Path) -> list[Requirement]:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return [
        Requirement(line)
        for line in (*project["dependencies"], *project["optional-dependencies"][TESTED_EXTRA])
    ]


def test_every_dependency_is_pinned_within_its_range(
    pins: dict[str, str], required: list[Requirement]
) -> None:
    outside = [str(need) for need in required if pins.get(canonicalize_name(need.name)) not in need.specifier]
    assert outside == []


def test_pins_are_sorted_and_exact(root: Path, pins: dict[str, str]) -> None:
    assert list(pins) == sorted(pins)
    assert all(re.fullmatch(r"[0-9][0-9a-z.]*", version) for version in pins.values())
