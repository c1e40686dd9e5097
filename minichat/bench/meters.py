"""Energy: NVML counts it on an NVIDIA GPU, RAPL on an Intel or AMD processor under Linux."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.execution.load import Nvml

_POWERCAP = Path("/sys/class/powercap")


@dataclass(frozen=True, slots=True)
class EnergyMeter:
    """`joules` is the energy used since some moment. It only grows."""

    name: str
    joules: Callable[[], float]


def energy_meter(device: torch.device, powercap: Path = _POWERCAP) -> EnergyMeter | str:
    """The meter of a device, or why there is none."""
    if device.type == "cuda":
        gpu = Nvml.of(device)
        if gpu is None:
            return "NVIDIA's driver library lists no such GPU, as with a MIG partition"
        try:
            gpu.joules()
        except (OSError, AttributeError) as error:
            return f"the driver does not count this GPU's energy: {error}"
        return EnergyMeter("NVML, the GPU alone", gpu.joules)
    packages = [_Package(folder) for folder in sorted(powercap.glob("intel-rapl:*")) if _is_package(folder)]
    if not packages:
        return f"{powercap} lists no processor: RAPL is missing, as in most virtual machines and containers"
    try:
        for package in packages:
            package.joules()
    except OSError as error:
        return f"cannot read {error.filename}: {error.strerror}; RAPL is usually readable by root only"
    return EnergyMeter("RAPL, all processors", lambda: sum(package.joules() for package in packages))


def _is_package(folder: Path) -> bool:
    """A processor, not one of its parts, such as intel-rapl:0:1, and not the whole platform."""
    return folder.name.count(":") == 1 and (folder / "name").read_text().startswith("package")


class _Package:
    """A processor's counter, which starts again from zero at its range."""

    def __init__(self, folder: Path) -> None:
        self._counter, self._range = folder / "energy_uj", folder / "max_energy_range_uj"
        self._last: int | None = None
        self._sum = 0

    def joules(self) -> float:
        now = int(self._counter.read_text())
        if self._last is not None:
            self._sum += now - self._last if now >= self._last else now + self._limit() - self._last
        self._last = now
        return self._sum / 1e6

    def _limit(self) -> int:
        return int(self._range.read_text())
