"""install.py reports in one sentence why it cannot work, and keeps a working torch."""

import subprocess
import sys
from pathlib import Path

import pytest

import install

METADATA = "Metadata-Version: 2.1\nName: torch\nVersion: {version}\n{needs}"


def fake_torch(folder: Path, version: str, needs: tuple[str, ...] = (), code: str = "") -> None:
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text(code)
    info = folder / f"torch-{version}.dist-info"
    info.mkdir()
    lines = "".join(f"Requires-Dist: {need}\n" for need in needs)
    (info / "METADATA").write_text(METADATA.format(version=version, needs=lines))


def refused(root: Path, before: str, *arguments: str) -> str:
    """The single line that install.py writes to stderr, in an interpreter that runs `before` first."""
    program = (
        f"import sys, runpy\n{before}\nsys.argv = ['install.py', *{arguments!r}]\n"
        f"runpy.run_path({str(root / 'install.py')!r}, run_name='__main__')"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_an_old_python_is_refused(root: Path) -> None:
    sentence = refused(root, "sys.version_info = (3, 9, 2)")
    assert "needs Python 3.11 or newer" in sentence
    assert "is 3.9.2" in sentence


@pytest.mark.parametrize("module", ["venv", "ensurepip"])
def test_a_missing_module_is_reported(root: Path, tmp_path: Path, module: str) -> None:
    sentence = refused(root, f"sys.modules[{module!r}] = None", "--venv", str(tmp_path / "new"))
    assert f"has no {module} module" in sentence
    assert not (tmp_path / "new").exists()


def test_a_broken_environment_is_reported_and_not_changed(root: Path, tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    assert str(tmp_path) in refused(root, "", "--venv", str(tmp_path))
    assert python.exists()


def test_a_working_torch_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs = ("setuptools<82", "typing-extensions>=4.10", "opt-einsum>=3.3; extra == 'opt-einsum'")
    fake_torch(tmp_path, "2.11.0+cu130", needs)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = install.working_torch(Path(sys.executable))
    assert found == install.Torch("2.11.0+cu130", tmp_path, frozenset({"setuptools", "typing-extensions"}))


@pytest.mark.parametrize(("version", "code"), [("2.10.1", ""), ("2.12.0", "raise ImportError('no driver')")])
def test_an_old_or_broken_torch_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, code: str
) -> None:
    fake_torch(tmp_path, version, code=code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert install.working_torch(Path(sys.executable)) is None


def test_pins_that_conflict_with_the_installed_torch_are_dropped() -> None:
    pins = "# tested\nJinja2==3.1.6\nsetuptools==84.2.1\ntextual==8.2.8\ntorch==2.13.0\ntriton==3.7.1\n"
    assert install.constraints(pins, None) == pins
    found = install.Torch("2.11.0+cu130", Path("/there"), frozenset({"jinja2", "setuptools", "triton"}))
    assert install.constraints(pins, found) == "# tested\ntextual==8.2.8\ntorch==2.11.0+cu130\n"
