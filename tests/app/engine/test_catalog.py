"""Models are found beside files and folders that cannot be examined, and by what is typed."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.models.support import Support
from minichat.features.models import ModelScreen
from minichat.models.catalog import Model, arranged, local, on_hub, sources
from tests.app.configured import configured
from tests.app.conftest import run
from tests.app.engine.test_models import folder, picker
from tests.models.gguf.test_hostile import write as write_gguf_model


def test_an_entry_that_cannot_be_examined_hides_no_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "loop.gguf").symlink_to("loop.gguf")
    good, closed = folder(tmp_path / "good"), folder(tmp_path / "closed")
    stat = os.stat

    def refuse(path: Any, **more: Any) -> Any:
        if str(path).startswith(f"{closed}/"):
            raise PermissionError(13, "Permission denied", path)
        return stat(path, **more)

    monkeypatch.setattr(os, "stat", refuse)
    _, in_folder, *_ = sources([str(tmp_path)], [])
    assert [model.name for model in in_folder()] == [str(good)]


def test_a_current_folder_that_was_deleted_holds_no_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert [model.name for source in sources([], [])[:2] for model in source()] == ["pocket"]
    assert local("anything") == local("./anything") == []


def test_typed_text_may_name_a_model(tmp_path: Path) -> None:
    place = folder(tmp_path / "one")
    (model,) = local(str(place))
    assert model == Model(str(place), "folder", model.support)
    assert local(" Qwen/Qwen3-0.6B ") == []
    assert on_hub(" Qwen/Qwen3-0.6B ") == Model("Qwen/Qwen3-0.6B", "hub")
    for query in ("", "qwen", "a/b/c", "../x", "a b/c", "org/"):
        assert (local(query), on_hub(query)) == ([], None)


def test_typed_text_may_name_a_folder_of_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    models = [str(folder(tmp_path / "mine" / name)) for name in ("one", "two")]
    models.append(str(write_gguf_model(tmp_path / "mine" / "three.gguf")))
    for query in (str(tmp_path / "mine"), f"{tmp_path}/mine/", "../mine"):
        assert [model.name for model in local(query)] == models
    monkeypatch.chdir(tmp_path)
    assert [model.name for model in local("mine")] == models
    assert local("here") == []


@run
async def test_lines_follow_the_width_of_the_terminal(bench: Callable[..., Any]) -> None:
    async with bench((120, 40)) as it:
        await it.until(lambda: it.app.lifecycle.ready.is_set())
        await it.pilot.press("alt+o")
        line = lambda: next((row for row in it.screen_text().splitlines() if " pocket " in row), "")  # noqa: E731
        await it.until(lambda: line().count("built in") == 1)
        await it.pilot.resize_terminal(80, 24)
        await it.until(lambda: line().count("built in") == 1)
        await it.pilot.resize_terminal(120, 40)
        await it.until(lambda: line().index("llama") > 60)


def test_gguf_files_are_listed_and_may_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place := tmp_path)
    good = write_gguf_model(place / "good-q4.gguf")
    (place / "bad.gguf").write_bytes(b"GGML")
    (place / "folder.gguf").mkdir()
    sought = sources([], [str(good)])[:3]  # all but the hub's cache
    listed = {model.name: model for model in arranged(source() for source in sought)}
    bad = str(place / "bad.gguf")
    assert sorted(listed) == sorted(["pocket", str(good), bad])
    assert listed[str(good)].recent and listed[str(good)].place == "GGUF file"
    assert listed[str(good)].support == Support("llama", good.stat().st_size, native=True)
    assert listed[bad].trouble == "it is not a valid GGUF file: it does not start with GGUF"
    assert local("good-q4.gguf") == [Model(str(good), "GGUF file", listed[str(good)].support)]
    assert local("folder.gguf") == []


@pytest.mark.parametrize(
    ("kind", "pre", "trouble"),
    [
        ("gpt2", "new", "tokenizer.ggml.pre is 'new', which says how a text is split into words"),
        ("t5", "default", "tokenizer.ggml.model is 't5'"),
        ("none", "default", "it has no tokenizer"),
    ],
)
def test_a_gguf_file_with_an_unknown_tokenizer_says_so(
    kind: str, pre: str, trouble: str, tmp_path: Path
) -> None:
    def change(writer: Any) -> None:
        writer.add_tokenizer_model(kind)
        writer.add_tokenizer_pre(pre)

    (model,) = local(str(write_gguf_model(tmp_path / "odd.gguf", change)))
    assert model.trouble.startswith(trouble) and str(tmp_path) not in model.trouble


@run
async def test_a_folder_of_the_settings_that_does_not_exist_is_named(
    bench: Callable[..., Any], tmp_path: Path
) -> None:
    configured(tmp_path, '[engine]\nfolders = ["/nowhere", "."]')
    async with bench() as it:
        await picker(it, "nowhere")
        await it.until(lambda: "engine.folders lists it, but there is no such folder" in it.screen_text())
        [line] = [line for line in it.screen_text().splitlines() if " /nowhere " in line]
        assert "not found" in line
        await it.pilot.press("enter")
        assert isinstance(it.app.screen, ModelScreen) and not it.backend.switched
