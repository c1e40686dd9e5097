"""Where a figure was measured: the machine, the versions, the commit."""

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from minichat import __version__

ROOT = Path(__file__).resolve().parents[2]
_DIRTY = "-dirty"
PACKAGES = (
    "torch",
    "triton",
    "transformers",
    "tokenizers",
    "numpy",
    "bitsandbytes",
    "flash-attn",
    "flashinfer-python",
)


def why_unpublished() -> str:
    """Why figures that are measured now should not be published; empty if they may be."""
    dirty = (commit() or "").endswith(_DIRTY)
    return f"uncommitted changes: the figures are marked {_DIRTY}, and not for publication" if dirty else ""


def origin() -> dict[str, Any]:
    """When and where a figure is measured, for its line in a file."""
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
    }


def machine() -> dict[str, str | int | float | None]:
    torch = sys.modules.get("torch")
    gpu = torch is not None and torch.cuda.is_available()
    return {
        "cpu": cpu_model(),
        "simd": torch.backends.cpu.get_cpu_capability() if torch is not None else _simd(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads() if torch is not None else None,
        "gpu": torch.cuda.get_device_name() if torch is not None and gpu else None,
        "load": round(os.getloadavg()[0], 2),  # of the last minute: other work on the machine
    }


def identity(machine: Mapping[str, Any]) -> tuple[Any, ...]:
    """What two machines must have in common for their figures to be compared."""
    here = machine.get("gpu") or machine.get("simd")  # processors of one name may have different instructions
    return machine.get("cpu"), machine.get("cores"), here


def busy() -> str:
    """A sentence if other programs take part of the machine."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    return (
        f"The load is {load:.1f} on {cores} cores: differences may be other programs'."
        if load > cores
        else ""
    )


def described(machine: Mapping[str, Any]) -> str:
    """The machine of a line, such as `AMD EPYC (AVX512), 2 cores`."""
    simd = f" ({machine['simd']})" if machine.get("simd") else ""
    return f"{machine['gpu'] or machine['cpu'] + simd}, {machine['cores']} cores"


@cache
def cpu_model() -> str:
    return _cpuinfo("model name") or platform.processor() or platform.machine()


@cache
def _simd() -> str | None:
    """The instructions that torch would use."""
    flags = set(_cpuinfo("flags").split())
    needed = {"AVX512": {"avx512vl", "avx512bw", "avx512dq", "fma"}, "AVX2": {"avx2", "fma"}}
    return next((name for name, all_of in needed.items() if all_of <= flags), None)


def _cpuinfo(field: str) -> str:
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text().splitlines() if listing.exists() else []
    found = (line.partition(":")[2].strip() for line in lines if line.startswith(field))
    return next(found, "")


@cache
def versions() -> dict[str, str]:
    """Python and the installed packages that may affect a figure."""
    installed = {"python": platform.python_version(), "minichat": __version__}
    for package in PACKAGES:
        try:
            installed[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return installed


_RESULTS = ("benchmarks/results", "docs/results.md", "minichat/bench/reference.jsonl")


@cache
def commit(root: Path = ROOT) -> str | None:
    """The measured commit, marked if files other than results have changed since; None outside a checkout."""
    if not (root / ".git").exists():  # installed, maybe inside the checkout of another project
        return None
    git = ["git", "-C", str(root)]
    try:
        described = subprocess.run(
            [*git, "describe", "--always", "--abbrev=10"], capture_output=True, text=True
        )
    except FileNotFoundError:
        return None
    if described.returncode:
        return None
    others = [".", *(f":!{each}" for each in _RESULTS)]
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", *others]).returncode
    return described.stdout.strip() + (_DIRTY if changed else "")
