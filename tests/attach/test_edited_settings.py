"""`minichat up` beside an engine that has other options: from its start, or changed since."""

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.api.snapshot import AdapterView, Change
from minichat.cli import parser
from minichat.commands import attach
from minichat.models import present
from minichat.models.residents import Record, Resident, Waiting, home_of
from minichat.shell.paths import locate
from tests.app.conftest import snapshot
from tests.cli.conftest import Run, run

__all__ = ["run"]

WAYS = "stop it with minichat down, or start another one with --name"
ASKED = present.snapshot_of
AGAIN = "to change that: minichat down, then minichat up"


@pytest.fixture(autouse=True)
def shot(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the engine answers: the fields of its snapshot."""
    fields: dict[str, Any] = {"quantization": "none", "kv_scheme": "fp8"}
    monkeypatch.setattr(present, "snapshot_of", lambda resident: snapshot(**fields))
    return fields


@pytest.fixture
def resident(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Resident]:
    """An engine that is ready: its lock is held, and it has a record."""
    for name in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.delenv(f"XDG_{name}_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    one = Resident(home_of(locate()))
    one.folder.mkdir(parents=True)
    words = ["--model=pocket", "--policy=fcfs", "--quantization=none", "--kv=fp8"]
    Record(os.getpid(), "pocket", 0.0, "ready", words=words).write(one.file)
    locate().settings.parent.mkdir(parents=True)
    with open(one.lock, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield one


def test_settings_that_a_running_engine_does_not_have_are_reported(run: Run, resident: Resident) -> None:
    file = locate().settings
    file.write_text('[engine]\nquantization = "int8"\nblocks = 64\npolicy = "fcfs"\nkv = "fp8"\n')
    code, _, err = run("up", "--no-screen")
    way = "to change that: minichat down, then minichat up"
    assert (code, err.splitlines()) == (
        0,
        [
            f"minichat: {file}:2: engine.quantization: the engine main runs with none, not int8; {way}",
            f"minichat: {file}:3: engine.blocks: the engine main runs without it; {way}",
            f"minichat: {resident.goes_on}",
        ],
    )


def test_a_policy_that_is_unknown_is_to_be_corrected(run: Run, resident: Resident) -> None:
    """Another start of the engine would meet the same error."""
    file, says = locate().settings, "policy 'fast' is unknown; available: fcfs, latency, priority"
    file.write_text('[engine]\npolicy = "fast"\nkv = "fp8"\n')
    code, _, err = run("up", "--no-screen")
    assert (code, err) == (0, f"minichat: {file}:2: engine.policy: {says}\nminichat: {resident.goes_on}\n")
    assert run("up", "--no-screen", "--policy", "fast") == (2, "", f"minichat: --{says}\n")


def test_settings_that_were_removed_are_reported(run: Run, resident: Resident) -> None:
    record = resident.record
    assert record is not None
    words = [*(record.words or ()), "--blocks=64", "--max-context=512"]
    record.changed(words=words, configured=["policy", "kv", "blocks"]).write(resident.file)
    file, runs = locate().settings, "the engine main still runs with"
    code, _, err = run("up", "--no-screen")  # policy is as by default, and max-context was typed
    assert (code, err.splitlines()) == (
        0,
        [
            f"minichat: {file}: engine.kv: {runs} fp8, which is no longer set; {AGAIN} --max-context=512",
            f"minichat: {file}: engine.blocks: {runs} 64, which is no longer set; {AGAIN} --max-context=512",
            f"minichat: {resident.goes_on}",
        ],
    )
    assert "blocks" not in run("up", "--no-screen", "--blocks=64").err
    file.write_text('[engine]\nkv = "fp8"\nblocks = 64\n')
    assert run("up", "--no-screen").err == f"minichat: {resident.goes_on}\n"


def test_a_start_notes_the_settings_that_it_uses(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.delenv(f"XDG_{name}_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    locate().settings.parent.mkdir(parents=True)
    locate().settings.write_text('[engine]\nkv = "fp8"\nblocks = 64\nmax_context = 512\n')
    launched = "engine.host.launching.subprocess.Popen"  # its module must be imported before
    monkeypatch.setattr(launched, lambda given, **more: started.append(given) or SimpleNamespace(pid=1))
    started: list[list[str]] = []
    assert run("up", "--no-screen", "--blocks=32").code == 1  # nothing has started
    assert started[0][4:7] == [str(home_of(locate())), "main", "max_context,kv"]
    assert "--kv=fp8" in started[0] and "--blocks=32" in started[0]


def test_other_differences_are_not(run: Run, resident: Resident) -> None:
    """Options that it was started with hide no setting, and a typed option is checked by itself."""
    locate().settings.write_text('[engine]\nquantization = "int8"\n')
    code, _, err = run("up", "--no-screen", "--quantization=none")
    assert (code, err.splitlines()) == (0, [f"minichat: {resident.goes_on}"])


# What has changed since its start


def changed(resident: Resident, *words: str) -> None:
    """Its record, with options of its start."""
    record = resident.record
    assert record is not None
    record.changed(words=["--model=pocket", *words]).write(resident.file)


def test_a_conversion_changes_the_options_that_it_has(
    run: Run, resident: Resident, shot: dict[str, Any]
) -> None:
    shot |= {"quantization": "bf16", "kv_scheme": "int8"}
    for word, now in ("--quantization=none", "--quantization=bf16"), ("--kv=fp8", "--kv=int8"):
        says = f"minichat: the engine main runs with {now}, not {word}; {WAYS}\n"
        assert run("up", "--no-screen", word) == (2, "", says)
    code, _, err = run("up", "--no-screen", "--quantization=bf16", "--kv=int8")
    assert (code, err) == (0, f"minichat: {resident.goes_on}\n")
    file = locate().settings
    file.write_text('[engine]\nquantization = "none"\nkv = "int8"\n')
    code, _, err = run("up", "--no-screen")
    says = f"{file}:2: engine.quantization: the engine main runs with bf16, not none; {AGAIN}"
    assert (code, err.splitlines()) == (0, [f"minichat: {says}", f"minichat: {resident.goes_on}"])


def test_the_format_of_a_checkpoint_has_no_name_that_could_be_typed(
    run: Run, resident: Resident, shot: dict[str, Any]
) -> None:
    shot["quantization"] = "gptq"
    assert run("up", "--no-screen", "--quantization=none").code == 0
    assert run("up", "--no-screen", "--quantization=int8").code == 2


def test_while_the_weights_are_converted_it_will_have_the_new_scheme(
    run: Run, resident: Resident, shot: dict[str, Any]
) -> None:
    shot |= {"quantization": "int8", "change": Change("bf16", 1, 8)}
    says = "minichat: the engine main is being converted from int8 to bf16"
    code, _, err = run("up", "--no-screen", "--quantization=bf16")
    assert (code, err.splitlines()) == (0, [says, f"minichat: {resident.goes_on}"])
    code, _, err = run("up", "--no-screen", "--quantization=int8")
    assert (code, err) == (2, f"{says}, so it will run without --quantization=int8; {WAYS}\n")
    locate().settings.write_text('[engine]\nquantization = "int4"\n')
    assert (
        "the engine main is being converted from int8 to bf16, not to int4;" in run("up", "--no-screen").err
    )
    shot["change"] = Change("bf16", 1, 8, "no memory")  # it is being taken back
    assert run("up", "--no-screen", "--quantization=int8").code == 0


def test_an_engine_that_does_not_answer_is_compared_with_its_start(
    run: Run, resident: Resident, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(present, "snapshot_of", ASKED)  # there is no socket
    code, _, err = run("up", "--no-screen", "--kv=fp8", "--quantization=none")
    assert code == 0, err
    first, last = err.splitlines()
    assert first.startswith("minichat: the engine main does not say what it runs with now (no answer from")
    assert first.endswith("); compared with its start")
    assert last == f"minichat: {resident.goes_on}"


def test_it_is_only_asked_about_what_can_change(
    run: Run, resident: Resident, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(present, "snapshot_of", lambda resident: pytest.fail("asked"))
    locate().settings.write_text('[engine]\npolicy = "fcfs"\n')
    assert run("up", "--no-screen", "--policy=fcfs").code == 0
    changed(resident, "--dry-run", "--kv=int8")
    assert run("up", "--no-screen", "--dry-run", "--kv=int8").code == 0


def test_an_engine_with_weights_is_no_dry_run(run: Run, resident: Resident) -> None:
    says = f"minichat: the engine main runs without --dry-run; {WAYS}\n"
    assert run("up", "--no-screen", "--dry-run") == (2, "", says)
    changed(resident, "--dry-run")
    assert run("up", "--no-screen", "--dry-run", "--rate=5").code == 0


def test_a_dry_run_is_no_engine_with_weights(run: Run, resident: Resident) -> None:
    changed(resident, "--dry-run")
    says = f"minichat: the engine main runs with --dry-run: its replies are invented; {WAYS}\n"
    assert run("up", "--no-screen") == (2, "", says)
    assert "main runs with --dry-run" in run("up", "--no-screen", "--model=pocket").err
    says = run("up", "--no-screen", "--dry-run").err
    assert says.startswith("minichat: main is running as a dry run; open it:")
    assert "no answer  pocket, dry run" in run("ps").out  # there is no socket
    [line] = json.loads(run("ps", "--json").out)
    assert line["dry_run"] is True


def test_limits_of_latency_may_have_changed(run: Run, resident: Resident, shot: dict[str, Any]) -> None:
    changed(resident, "--policy=latency", "--target-ms=250.0", "--max-slowdown=2.0")
    shot |= {"policy": "latency", "latency_target": 0.25, "max_slowdown": 2.0}
    latency = "up", "--no-screen", "--policy=latency"
    assert run(*latency, "--target-ms=250", "--max-slowdown=2").code == 0
    shot |= {"latency_target": 0.3, "max_slowdown": None}
    for word, runs in (
        ("--target-ms=250.0", "runs with --target-ms=300.0, not --target-ms=250.0;"),
        ("--max-slowdown=2.0", "runs without --max-slowdown=2.0;"),
    ):
        assert runs in run(*latency, word).err
    assert run(*latency, "--target-ms=300").code == 0


def test_adapters_may_have_been_loaded_or_dropped(
    run: Run, resident: Resident, shot: dict[str, Any], tmp_path: Path
) -> None:
    changed(resident, "--adapter=a=org/a", "--adapter=b=org/b")
    shot["adapters"] = (AdapterView("b", 8, 100, "x"), AdapterView("c", 8, 100, "sql"))
    for there in ("b=org/b", "c=org/any", f"c={tmp_path / 'sql'}"):
        assert run("up", "--no-screen", f"--adapter={there}").code == 0
    for missing in ("a=org/a", "b=org/other", f"c={tmp_path / 'else'}", "d=org/d"):
        code, _, err = run("up", "--no-screen", f"--adapter={missing}")
        assert code == 2
        assert f"main runs with --adapter=b=org/b --adapter=c=sql, not --adapter={missing};" in err


def test_a_screen_restarts_with_options_that_its_engine_has(
    resident: Resident, shot: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """F5 after a conversion: the same words would be refused."""
    again: list[Callable[[str], list[str]]] = []
    monkeypatch.setattr(attach, "show", lambda *given, **more: again.append(given[4]) or 0)
    words = ["up", "--quantization=none", "--adapter=a=org/a", "--temperature=0.5"]
    attach.attach_to(parser().parse_args(words), locate(), Waiting(resident, []))
    changed(resident, "--quantization=none", "--adapter=a=org/a")
    shot |= {"quantization": "int4", "adapters": (AdapterView("a", 8, 100, "a"),)}
    words = ["up", "--quantization=int4", "--adapter=a=org/a", "--temperature=0.5"]
    assert sorted(again[0]("pocket")) == sorted([*words, "--name=main"])
