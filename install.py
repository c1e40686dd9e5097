"""Make the environment of `make chat` and `make test`, and keep a torch that works already.

Runs under whatever Python is there, before anything is installed: only the standard library, and only
syntax that an old Python can read as far as the sentence that it is too old.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - this is the check
    found = ".".join(map(str, sys.version_info[:3]))
    sys.stderr.write(
        f"minichat needs Python 3.11 or newer, and {sys.executable} is {found}: "
        f"name another with 'make PYTHON=...'\n"
    )
    sys.exit(2)

import argparse
import importlib.util
import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent
OLDEST_TORCH = (2, 11)
PROBE = """
import importlib.metadata as metadata, json, pathlib, torch
print(json.dumps({
    "version": metadata.version("torch"),
    "folder": str(pathlib.Path(torch.__file__).parents[1]),
    "needs": metadata.requires("torch") or [],
}))
"""


class Refusal(Exception):
    """One sentence for the person who typed `make`."""


@dataclass(frozen=True)
class Torch:
    version: str
    folder: Path
    needs: frozenset[str]  # the packages it asks for, by their normal names


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make minichat's environment.", allow_abbrev=False)
    parser.add_argument("--venv", type=Path, default=Path(".venv"), help="where it is, or shall be")
    parser.add_argument("--extra", action="append", default=[], help="an extra, such as test")
    options = parser.parse_args(argv)
    try:
        python = environment(options.venv)
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        return 2
    return install(python, options.venv, options.extra)


def environment(venv: Path) -> Path:
    """The environment's Python, made first where there is none."""
    python = venv / "bin" / "python"
    if not python.exists():
        create(venv)
    if not runs(python, "-m", "pip", "--version"):
        raise Refusal(f"{venv} is there, but pip does not run in it: remove it (rm -r {venv}) and try again")
    return python


def create(venv: Path) -> None:
    for module in ("venv", "ensurepip"):
        if importlib.util.find_spec(module) is None:
            raise Refusal(
                f"{sys.executable} has no {module} module: install it (on Debian and Ubuntu the package is "
                f"python3-venv), or name another Python with 'make PYTHON=...'"
            )
    print(f"Creating {venv} with Python {sys.version.split()[0]}", flush=True)
    if not runs(Path(sys.executable), "-m", "venv", str(venv)):
        raise Refusal(f"{sys.executable} -m venv {venv} failed: run it by hand to see why")
    torch = working_torch(Path(sys.executable))
    if torch:
        # Linked by its folder, not by --system-site-packages: this Python may live in an environment too.
        packages = venv / "lib" / "python{}.{}".format(*sys.version_info) / "site-packages"
        (packages / "found-torch.pth").write_text(f"{torch.folder}\n")


def install(python: Path, venv: Path, extras: list[str]) -> int:
    torch = working_torch(python)
    if torch:
        print(f"Keeping torch {torch.version} of {torch.folder}", flush=True)
    pins = venv / "constraints.txt"
    pins.write_text(constraints((ROOT / "constraints.txt").read_text(), torch))
    target = f"{ROOT}[{','.join(extras)}]" if extras else str(ROOT)
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check"]
    return subprocess.run([*pip, "-c", str(pins), "-e", target]).returncode


def working_torch(python: Path) -> Torch | None:
    """The torch that this Python imports, where it is new enough."""
    probe = subprocess.run([python, "-P", "-c", PROBE], capture_output=True, text=True)
    if probe.returncode != 0:
        return None
    found = json.loads(probe.stdout.splitlines()[-1])
    major, minor = re.findall(r"\d+", found["version"])[:2]
    if (int(major), int(minor)) < OLDEST_TORCH:
        return None
    needs = frozenset(name(line) for line in found["needs"] if "extra ==" not in line)
    return Torch(found["version"], Path(found["folder"]), needs)


def constraints(pins: str, torch: Torch | None) -> str:
    """The tested versions; beside a torch of another release, what that one asks for stays its own affair."""
    if torch is None:
        return pins
    free = torch.needs | {"torch"}
    kept = [line for line in pins.splitlines() if name(line) not in free]
    return "\n".join([*kept, f"torch=={torch.version}", ""])


def name(requirement: str) -> str:
    """The normal name of the package in a requirement; a comment has none."""
    match = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement)
    return re.sub(r"[-_.]+", "-", match[0]).lower() if match else ""


def runs(program: Path, *arguments: str) -> bool:
    return subprocess.run([program, *arguments], capture_output=True).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
