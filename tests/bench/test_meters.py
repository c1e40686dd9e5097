"""Energy counters: which are read, their range, and why there is none."""

from pathlib import Path

import pytest
import torch

from minichat.bench.meters import EnergyMeter, energy_meter

CPU = torch.device("cpu")


def zone(folder: Path, name: str, kind: str, microjoules: int) -> Path:
    made = folder / name
    made.mkdir()
    (made / "name").write_text(f"{kind}\n")
    (made / "energy_uj").write_text(f"{microjoules}\n")
    (made / "max_energy_range_uj").write_text("1000000\n")
    return made


def test_processors_are_added_and_their_counters_start_again(tmp_path: Path) -> None:
    first = zone(tmp_path, "intel-rapl:0", "package-0", 900_000)
    second = zone(tmp_path, "intel-rapl:1", "package-1", 100_000)
    zone(tmp_path, "intel-rapl:0:0", "core", 5)
    platform = zone(tmp_path, "intel-rapl:2", "psys", 7)
    meter = energy_meter(CPU, tmp_path)
    assert isinstance(meter, EnergyMeter)
    before = meter.joules()
    (first / "energy_uj").write_text("200000")  # 0.3 J later, past its range
    (second / "energy_uj").write_text("600000")
    (platform / "energy_uj").write_text("999999")
    assert meter.joules() - before == pytest.approx(0.8)


def test_the_reason_is_reported(tmp_path: Path) -> None:
    assert f"{tmp_path} lists no processor" in str(energy_meter(CPU, tmp_path))
    made = zone(tmp_path, "intel-rapl:0", "package-0", 1)
    (made / "energy_uj").unlink()
    (made / "energy_uj").mkdir()  # as unreadable as a file of another user
    assert f"cannot read {made / 'energy_uj'}" in str(energy_meter(CPU, tmp_path))
