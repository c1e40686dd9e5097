"""The GPU's load: what NVML is asked for, and that reading it never blocks."""

import threading
from typing import Any

import pytest
import torch

from engine.api.snapshot import Load
from engine.execution.load import LoadMeter, Nvml
from tests.waiting import becomes


class FakeNvml:
    """Returns as NVML does: 0 and a number through the pointer, or an error code."""

    def __init__(self, **codes: int) -> None:
        self.codes = codes
        self.asked: list[str] = []

    def __getattr__(self, function: str) -> Any:
        def call(*arguments: Any) -> int:
            self.asked.append(function)
            match function:
                case "nvmlDeviceGetHandleByUUID":
                    assert arguments[0] == b"GPU-1234"
                case "nvmlDeviceGetUtilizationRates":
                    arguments[1]._obj.gpu = 87
                case "nvmlDeviceGetPowerUsage":
                    arguments[1]._obj.value = 412_400
                case "nvmlDeviceGetTotalEnergyConsumption":
                    arguments[1]._obj.value = 2**40 + 500
                case "nvmlDeviceGetEnforcedPowerLimit":
                    arguments[1]._obj.value = 700_000
            return self.codes.get(function, 0)

        return call


def test_load_and_power_are_converted() -> None:
    assert Nvml("1234", FakeNvml()).look() == Load(0.87, 412.4, 700.0)


def test_a_gpu_of_another_rank_is_named_with_or_without_its_prefix() -> None:
    assert Nvml("GPU-1234", FakeNvml()).look() == Load(0.87, 412.4, 700.0)


def test_energy_is_in_joules() -> None:
    assert Nvml("1234", FakeNvml()).joules() == (2**40 + 500) / 1000


def test_an_error_of_the_library_is_raised() -> None:
    with pytest.raises(OSError, match="nvmlDeviceGetHandleByUUID: error 6"):
        Nvml("1234", FakeNvml(nvmlDeviceGetHandleByUUID=6))


def test_reading_does_not_block_and_asks_once_a_second() -> None:
    now, goes = 0.0, threading.Event()
    looked: list[float] = []

    def look() -> Load:
        looked.append(now)
        assert goes.wait(10)
        if len(looked) == 3:
            raise OSError("the driver went away")
        return Load(len(looked) / 10, 1.0, 2.0)

    def done() -> None:
        for each in threading.enumerate():
            if each.name == "gpu load":
                each.join()

    meter = LoadMeter(look, clock=lambda: now)
    assert meter.read() is None
    now = 1.5
    assert meter.read() is None
    assert looked == [0.0], "the driver was asked again while a call is pending"
    goes.set()
    done()
    assert meter.read() == Load(0.1, 1.0, 2.0)
    done()
    now = 2.0
    assert meter.read() == Load(0.2, 1.0, 2.0)
    assert looked == [0.0, 1.5]
    now = 3.0
    meter.read()
    done()
    assert meter.read() is None, "an old value is returned after an error"


def test_a_cpu_has_no_load_meter() -> None:
    assert LoadMeter.of(torch.device("cpu")) is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_real_gpu_reports_its_load() -> None:
    meter = LoadMeter.of(torch.device("cuda", 0))
    assert meter is not None, "NVML is missing, or does not list this GPU"
    assert becomes(lambda: meter.read() is not None)
    load = meter.read()
    assert load is not None
    assert 0 <= load.busy <= 1
    assert 10 < load.watts < load.limit * 1.2
