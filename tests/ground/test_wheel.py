"""The contents of the wheel: both packages with their data, the themes, and nothing else."""

import os
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

BUILD = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    built = subprocess.run([sys.executable, "-c", BUILD, folder], cwd=root, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return zipfile.ZipFile(folder / built.stdout.split()[-1])


def shipped_from(root: Path, folder: str) -> set[str]:
    """The files of a folder of the checkout that the wheel must contain."""
    files = (file for file in (root / folder).rglob("*") if file.is_file() and file.suffix != ".pyc")
    return {file.relative_to(root).as_posix() for file in files}


def test_contains_both_packages(root: Path, wheel: zipfile.ZipFile) -> None:
    shipped = shipped_from(root, "minichat") | shipped_from(root, "engine")
    assert "minichat/cli.py" in shipped
    assert shipped - set(wheel.namelist()) == set()


def test_contains_the_themes(root: Path, wheel: zipfile.ZipFile) -> None:
    shipped = {f"minichat/{name}" for name in shipped_from(root, "themes")}
    assert shipped - set(wheel.namelist()) == set()


def test_contains_nothing_else(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"minichat", "engine"}


def test_runs_without_the_checkout(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path / "site")
    program = "import minichat, engine; print(minichat.__file__, engine.__file__, sep='\\n')"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    listed = subprocess.run(
        [sys.executable, "-P", "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert listed.stdout.splitlines() == [
        str(tmp_path / "site" / package / "__init__.py") for package in ("minichat", "engine")
    ]


def test_metadata_matches_pyproject(root: Path, wheel: zipfile.ZipFile) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    info = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = Parser().parsestr(wheel.read(info).decode())
    assert metadata["Requires-Python"] == project["requires-python"]
    scripts = wheel.read(info.replace("METADATA", "entry_points.txt")).decode()
    assert "minichat = minichat.__main__:main" in scripts
