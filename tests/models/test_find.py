"""Finding a model by its name."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from engine.api.errors import BadCheckpoint, ModelNotFound
from engine.models import find
from engine.models.find import find_model
from tests.models.tiny import checkpoint, write_config


@pytest.fixture(autouse=True)
def _hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants as hub

    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)


def in_cache(tmp_path: Path, name: str) -> Path:
    """Make an empty snapshot in the layout of the hub's client."""
    home = tmp_path / "hub" / f"models--{name.replace('/', '--')}"
    commit = "0123456789" * 4
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text(commit)
    (home / "snapshots" / commit).mkdir(parents=True)
    return home / "snapshots" / commit


def test_a_folder_and_its_config_are_the_same_model(tmp_path: Path) -> None:
    folder = tmp_path / "my model"
    folder.mkdir()
    write_config(folder)
    for name in (folder, folder / "config.json"):
        place = find_model(str(name))
        assert (place.name, place.folder) == ("my model", folder.resolve())


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    for name in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(ModelNotFound, match=r"config\.json"):
            find_model(str(name))


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        ("model.safetensors", "model.safetensors holds weights without a config.json"),
        ("pytorch_model.bin", "pytorch_model.bin is a pickle, which can run any code"),
        ("adapter_config.json", "is an adapter, not a whole model: merge it"),
    ],
)
def test_a_file_that_is_not_a_model_is_refused_with_advice(tmp_path: Path, file: str, problem: str) -> None:
    (tmp_path / file).touch()
    for name in (tmp_path, tmp_path / file):
        with pytest.raises(BadCheckpoint) as refused:
            find_model(str(name))
        assert problem in str(refused.value) and "\n" not in str(refused.value)


def test_a_gguf_file_is_a_model_but_its_folder_is_not(tmp_path: Path) -> None:
    file = tmp_path / "tiny-q4.gguf"
    file.touch()
    place = find_model(str(file))
    assert (place.name, place.folder) == ("tiny-q4", file.resolve())
    with pytest.raises(BadCheckpoint, match=r"tiny-q4\.gguf is a GGUF file, which is a whole model: specify"):
        find_model(str(tmp_path))


def test_a_folder_without_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: str | Path) -> list[str]:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(find.os, "listdir", refuse)  # root may read everything
    with pytest.raises(ModelNotFound, match=r"cannot be read: Permission denied$"):
        find_model(str(tmp_path))


def test_the_built_in_model_has_two_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.setattr(find, "__file__", str(tmp_path / "models" / "find.py"))
    with pytest.raises(ModelNotFound, match="no built-in model"):
        find_model(None)
    (tmp_path / "pocket").mkdir()
    write_config(tmp_path / "pocket")
    assert find_model(None) == find_model("pocket")


def test_a_cached_model_needs_no_network(tmp_path: Path) -> None:
    checkpoint(in_cache(tmp_path, "some/model"))
    assert find_model("some/model").name == "some/model"


def test_a_snapshot_without_weights_is_for_dummy_weights_only(tmp_path: Path) -> None:
    folder = write_config(in_cache(tmp_path, "some/model"))
    assert find_model("some/model", dummy=True).folder == folder
    with pytest.raises((ModelNotFound, BadCheckpoint), match="some/model"):
        find_model("some/model")


def test_the_error_when_offline() -> None:
    with pytest.raises(
        ModelNotFound, match="some/model is not on this machine, and the hub cannot be reached"
    ):
        find_model("some/model")


def test_a_download_reports_its_bytes_and_takes_no_pickles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import huggingface_hub

    folder = tmp_path / "fetched"
    folder.mkdir()

    def fetch(name: str, *, allow_patterns: list[str], local_files_only: bool = False, **options: Any) -> str:
        if local_files_only:
            raise LocalEntryNotFoundError(name)
        assert not any("bin" in pattern or pattern == "*" for pattern in allow_patterns)
        with options["tqdm_class"](total=300, unit="B", desc="sent") as bar:
            bar.update(100)
            bar.update(200)
        with options["tqdm_class"](total=2, desc="files") as bar:
            bar.update(2)
        checkpoint(folder)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    reported: list[tuple[int, int]] = []
    assert find_model("some/model", progress=lambda *bytes: reported.append(bytes)).folder == folder
    assert reported == [(100, 300), (300, 300)]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("files", "problem"), [((), r"has no config\.json"), (("config.json",), r"has no model\.safetensors")]
)
def test_the_error_names_a_file_missing_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...], problem: str
) -> None:
    import huggingface_hub

    for file in files:
        (tmp_path / file).write_text("{}")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *args, **options: str(tmp_path))
    with pytest.raises(BadCheckpoint, match=f"some/model {problem}"):
        find_model("some/model")


def test_reading_configs_and_finding_models_needs_no_torch() -> None:
    code = (
        "import sys, engine.models.config_json, engine.models.find;"
        "print([name for name in ('torch', 'transformers', 'huggingface_hub') if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


NOT_PATHS = ["a b", "a\0b", "é", "x" * 97, "x" * 300, "x" * 5000, "https://example.org/model", "org\\model"]
NOT_THERE = [
    "../model",
    "org/../model",
    "org/..",
    "a/b/c",
    "/no/such/folder",
    "~nobody-here/x",
    "a--b",
    "-a",
    "a/b\n",
]


@pytest.mark.parametrize("name", NOT_PATHS + NOT_THERE)
def test_bad_names_are_refused_before_the_network(name: str) -> None:
    with pytest.raises(ModelNotFound, match="there is no folder"):
        find_model(name)
