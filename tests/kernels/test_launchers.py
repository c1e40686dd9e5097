"""Building launchers of kernels, as processes that start together do: locks of files exclude threads, too."""

import shutil
import subprocess
import sysconfig
from pathlib import Path
from threading import Barrier, Event, Thread
from typing import Any

import pytest

pytest.importorskip("triton")

from engine.kernels.triton.launchers import loaded_from_copy, named, one_at_a_time


def test_a_launcher_is_built_once_and_then_loaded(tmp_path: Path) -> None:
    """The second one waits: it finds the first one's file and does not replace it."""
    built, found, building, go_on = tmp_path / "launcher.so", list[str](), Event(), Event()

    def build(src: str, name: str) -> None:
        found.append("loaded" if built.exists() else "built")
        building.set()
        assert go_on.wait(20)
        built.write_text(src + name)

    alone = one_at_a_time(build, lambda: tmp_path / "locks")
    threads = [Thread(target=alone, args=("int main;", "launcher"), daemon=True) for _ in range(2)]
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
    threads = [Thread(target=alone, args=(src,), kwargs={"libraries": []}, daemon=True) for src in ("a", "b")]
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


def compiled(folder: Path, name: str, value: int) -> Path:
    """A module that has a `value`, in C."""
    source, made = folder / f"{name}.c", folder / f"{name}.so"
    source.write_text(
        "#include <Python.h>\n"
        f'static struct PyModuleDef module = {{PyModuleDef_HEAD_INIT, "{name}", NULL, -1, NULL}};\n'
        f"PyMODINIT_FUNC PyInit_{name}(void) {{\n"
        "  PyObject *made = PyModule_Create(&module);\n"
        f'  PyModule_AddIntConstant(made, "value", {value});\n'
        "  return made;\n}\n"
    )
    include = sysconfig.get_paths()["include"]
    subprocess.run(["cc", "-shared", "-fPIC", f"-I{include}", str(source), "-o", str(made)], check=True)
    return made


needs_compiler = pytest.mark.skipif(
    not shutil.which("cc") or not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists(),
    reason="no C compiler, or no headers of Python",
)


@needs_compiler
def test_a_file_that_python_takes_for_another_is_loaded_from_a_copy(tmp_path: Path) -> None:
    """As if the file had the inode of the other one: what is found lacks the module's own function."""
    builds = list[str]()

    def build(src: str, name: str, **options: Any) -> Any:
        builds.append(name)
        compiled(tmp_path, name, int(src.split()[-1]))
        other = compiled(tmp_path, f"other{len(builds)}", 0)
        if src.split()[0] == "refused":
            raise ImportError(
                f"dynamic module does not define PyInit_{name}", path=str(tmp_path / f"{name}.so")
            )
        return loaded_from_copy(f"other{len(builds)}", other)

    launcher = named(build)
    first, second = (launcher(f"refused __triton_launcher {n}", "__triton_launcher") for n in (3, 4))
    assert (first.value, second.value) == (3, 4)
    assert launcher("found __triton_launcher 5", "__triton_launcher").value == 0
    assert len(set(builds)) == 3 and all(each.startswith("__triton_launcher_") for each in builds)


def test_launchers_have_their_own_names_in_their_source() -> None:
    def build(src: str, name: str) -> str:
        assert src == f"PyInit_{name}"
        return name

    launcher = named(build)
    assert launcher("PyInit___triton_launcher", "__triton_launcher") != "__triton_launcher"
    assert launcher("PyInit_cuda_utils", "cuda_utils") == "cuda_utils"


def test_an_error_of_the_build_is_raised() -> None:
    def build(src: str, name: str) -> None:
        raise ImportError("libcuda is missing")

    with pytest.raises(ImportError, match="libcuda"):
        named(build)("a", "__triton_launcher")
