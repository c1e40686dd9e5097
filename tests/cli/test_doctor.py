"""`minichat doctor`: what is available, and why something is not."""

import errno
import json
import os
import re
import sys
from collections import namedtuple
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch

from engine.scheduling import policy
from minichat import __version__
from minichat.commands import doctor
from minichat.features import installed
from minichat.features.feature import Feature
from tests.cli.conftest import Run


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.kv.tiers.speeds.AMOUNT", 2**20)


def test_it_prints_a_report(run: Run) -> None:
    ran = run("doctor")
    assert (ran.code, ran.err) == (0, "")
    for part in (f"minichat {__version__}", "Devices", "Packages", torch.__version__, "Attention on cpu"):
        assert part in ran.out
    assert "(11.0 MB, and 1.97 MB for its draft model)" in ran.out
    plain = "on a GPU, 1 of 2 parts runs as plain torch"
    assert "bloom, mpt: on a GPU, 2 of 2 parts run as plain torch" in ran.out
    assert re.search(rf"\n  glm(, glm4)?: {plain}: GroupedAttention \(interleaved positions\)\n", ran.out)
    assert f"llama4: {plain}: GrowingAttention (interleaved positions)\n" in ran.out
    for scheme in ("none", "int8", "int4"):  # below, the same are "compiled", if they can be here
        line = next(line for line in ran.out.splitlines() if re.match(rf"  {scheme}\b.*: available", line))
        assert "compiled" in line
    assert "  fp8: FP8 products need" in ran.out
    assert "  int8               attention torch" in ran.out
    assert re.search(r"\nKernels of bfloat16 on cpu\n  none.*: (compiled|by torch: .+)\n", ran.out)
    assert re.search(
        r"\n  host, cpu +store \d+\.\d, load \d+\.\d\n  disk +store \d+\.\d, load \d+\.\d\n", ran.out
    )
    assert (
        "Tensor parallel (--tp)\n  cpu                available; the built-in model runs on 1, 2, 4 ranks"
        in ran.out
    )
    assert "Pipeline (--pp)\n  cpu                available; the built-in model has up to 8 stages" in ran.out
    count = torch.cuda.device_count()
    gpus = f"{'available' if count > 1 else 'needs two GPUs or more'}; this machine has {count}"
    small = "A model of 0.6B is faster on one with up to 32 replies"
    assert f"  cuda               {gpus}. {small}\n" in ran.out, "ranks"
    assert f"  cuda               {gpus}\n" in ran.out, "stages"
    assert "Scheduling policies (--policy)\n  fcfs, latency, priority" in ran.out


def test_a_terminal_shows_what_it_looks_at(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    ran = run("doctor", "--json")
    assert (ran.code, json.loads(ran.out)["minichat"]) == (0, __version__)
    assert ran.err.endswith("\r\x1b[K")
    assert list(filter(None, ran.err.split("\r\x1b[K"))) == [
        "importing torch ...",
        "looking for kernels ...",
        "measuring the cache tier host, cpu ...",
        "measuring the cache tier disk ...",
        "measuring the cache tier disk, O_DIRECT ...",
    ]


def test_a_narrow_terminal_does_not_break_the_json(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert json.loads(run("doctor", "--json").out)["minichat"] == __version__


def test_it_prints_json(run: Run) -> None:
    ran = run("doctor", "--json")
    assert (ran.code, ran.err) == (0, "")
    found = json.loads(ran.out)
    assert found["minichat"] == __version__
    assert found["packages"]["torch"]
    assert found["attention"]["cpu"]["torch"] is None  # nothing prevents it
    assert found["quantization"]["cpu"]["int8"] is None
    assert "need an NVIDIA GPU" in found["quantization"]["cpu"]["fp8"]
    if sys.platform == "linux":
        assert found["packages"]["bitsandbytes"]
        assert found["quantization"]["cpu"]["bnb-nf4"] is None
    assert "on a CPU" in found["kernels"]["int8"] and "rounded" in found["kernels"]["fp8"]
    assert found["compiled"].keys() == {"none", "int8", "int4", "attention", "norms"}
    assert found["kv"]["cpu"]["int8"] == ["torch"]
    assert min(found["tiers"]["host, cpu"].values()) > 0 < min(found["tiers"]["disk"].values())
    assert {"fcfs", "latency", "priority"} <= set(found["policies"])
    assert 0 < found["cpu"]["free"] <= found["cpu"]["memory"]
    assert found["cpu"]["cores"] >= 1


@pytest.mark.parametrize(
    ("code", "problem"),
    [(errno.EINVAL, "not supported by the file system"), (errno.ENOSPC, "No space left on device")],
)
def test_why_a_disk_is_no_tier(run: Run, monkeypatch: pytest.MonkeyPatch, code: int, problem: str) -> None:
    def fails(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwrite", fails)
    assert problem in json.loads(run("doctor", "--json").out)["tiers"]["disk, O_DIRECT"]
    assert problem in run("doctor").out


def test_settings_errors_are_listed(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert f"Settings: {tmp_path / 'minichat' / 'config.toml'}\n  no problems\n" in run("doctor").out
    (tmp_path / "minichat" / "themes").mkdir(parents=True)
    (tmp_path / "minichat" / "config.toml").write_text(
        '[screen]\ntheme = "dask"\n[sampling]\ntop_pp = 1\n[keys]\nchat.new = "f1"\n'
    )
    (tmp_path / "minichat" / "presets.toml").write_text("[mine]\ntop_p = 7\n")
    (tmp_path / "minichat" / "themes" / "broken.toml").write_text("x = [")
    faults = json.loads(run("doctor", "--json").out)["settings"]["faults"]
    named = ("sampling.top_pp", "keys.chat.new", "toml:2: screen.theme", "presets.toml:2", "broken.toml:1")
    assert len(faults) == len(named)
    for fault, name in zip(faults, named, strict=True):
        assert name in fault


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('device = "tpu"', "engine.device: device 'tpu' is unknown"),
        ('quantization = "int3"', "engine.quantization: quantization 'int3': no scheme has that name"),
        ('policy = "fast"', "engine.policy: policy 'fast' is unknown"),
        ('attention = "fast"', "engine.attention: attention 'fast': no backend has that name"),
        ('model = "/no/such"', "engine.model: there is no folder or GGUF file '/no/such'"),
        ('attention = "torch"', ""),
        ('model = "somebody/a-model-of-the-hub"', ""),
    ],
)
def test_settings_that_cannot_be_used_here_are_listed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str, fault: str
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "minichat").mkdir()
    file = tmp_path / "minichat" / "config.toml"
    file.write_text(f"[engine]\n{line}\n")
    faults = doctor._settings()["faults"]
    assert [each[: len(f"{file}:2: {fault}")] for each in faults] == [f"{file}:2: {fault}"] * bool(fault)


@pytest.mark.parametrize(("cuda", "reason"), [(None, "built without CUDA"), ("13.0", "no NVIDIA GPU")])
def test_why_there_is_no_gpu(
    run: Run, monkeypatch: pytest.MonkeyPatch, cuda: str | None, reason: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    assert reason in json.loads(run("doctor", "--json").out)["no_gpu"]
    assert reason in run("doctor").out


def test_a_gpu_is_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    properties = namedtuple("properties", "name major minor")("Large GPU", 9, 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (60_000_000_000, 80_000_000_000))
    out = run("doctor").out
    assert "Large GPU, compute 9.0, 60.0 of 80.0 GB free" in out
    assert "Attention on cuda:0" in out
    assert "no GPU" not in out


def test_a_policy_that_cannot_be_used_has_its_reason(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint("gone", "no.such.module:Gone", policy.GROUP)]
    monkeypatch.setattr(policy, "entry_points", lambda group: points)
    out = run("doctor").out
    assert "(--policy)\n  fcfs, latency, priority\n  policy 'gone' cannot be loaded: No module" in out


def test_a_feature_with_invalid_css_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    fine, _ = installed()
    styles = ("Mine { color: $text-success; }", "Mine { colour: red }", "Mine { color: $nothing; }")
    mine = [Feature(name=f"mine{at}", title="mine", css=css) for at, css in enumerate(styles)]
    monkeypatch.setattr(doctor, "installed", lambda: ((*fine, *mine), ()))
    first, second = doctor._settings()["faults"]
    assert first == "invalid CSS in the feature mine1 at 'colour:'"
    assert second.startswith("invalid CSS in the feature mine2: ") and "nothing" in second


def test_missing_packages_are_reported(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minichat.commands.doctor.PACKAGES", ("torch", "no-such-package"))
    monkeypatch.setattr("minichat.commands.doctor.OPTIONAL", ("no-such-extra",))
    out = run("doctor").out
    assert "MISSING: reinstall minichat" in out
    assert "not installed (optional)" in out


def test_long_lines_are_broken_between_words_on_a_terminal() -> None:
    families = "  llama, mistral: all parts have their own GPU kernels"
    assert doctor.fitted(f"Families\n{families}", 32).splitlines() == [
        "Families",
        "  llama, mistral: all parts have",
        "      their own GPU kernels",
    ]
    assert doctor.fitted(families, 80) == families
    assert "/a/path/of-a/folder-that-is-long" in doctor.fitted("  file /a/path/of-a/folder-that-is-long", 20)
