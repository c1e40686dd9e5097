"""Building launchers of kernels, as processes that start together do: locks of files exclude threads, too."""

from pathlib import Path
from threading import Barrier, Event, Thread
from typing import Any

import pytest

pytest.importorskip("triton")

from engine.kernels.triton.launchers import one_at_a_time


def test_a_launcher_is_built_once_and_then_loaded(tmp_path: Path) -> None:
    """The second one waits: it finds the first one's file and does not replace it."""
    built, found, building, go_on = tmp_path / "launcher.so", list[str](), Event(), Event()

    def build(src: str, name: str) -> None:
        found.append("loaded" if built.exists() else "built")
        building.set()
        assert go_on.wait(20)
        built.write_text(src + name)

    alone = one_at_a_time(build, lambda: tmp_path / "locks")
    threads = [Thread(target=alone, args=("int main;", "launcher")) for _ in range(2)]
    threads[0].start()
    assert building.wait(20)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert found == ["built", "loaded"]


def test_different_launchers_are_built_together(tmp_path: Path) -> None:
    both = Barrier(2)

    def build(src: str, **options: Any) -> str:
        both.wait(20)  # breaks if the other one has to wait
        return src

    alone = one_at_a_time(build, lambda: tmp_path)
    threads = [Thread(target=alone, args=(src,), kwargs={"libraries": []}) for src in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not both.broken


def test_the_lock_of_a_build_that_failed_is_released(tmp_path: Path) -> None:
    def build(src: str) -> None:
        raise RuntimeError("gcc is missing")

    alone = one_at_a_time(build, lambda: tmp_path)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="gcc is missing"):
            alone("a")
