"""Another model: found, downloaded, loaded in place of the running one; if that fails, the old one is
restored.
"""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from textual.widgets import Input

from engine.api.errors import ModelNotFound, UnsupportedModel
from engine.api.events import Died, Queued
from minichat.clients.fake import FakeBackend
from minichat.clients.protocol import Progress
from minichat.features.models import ModelScreen
from minichat.models.catalog import Model, Source, arranged, local, sources
from minichat.shell.remembered import Remembered
from tests.app.conftest import run, snapshot
from tests.models.tiny import checkpoint, write_config


@pytest.fixture(autouse=True)
def _places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working directory, and an empty hub cache."""
    import huggingface_hub.constants as hub

    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def folder(path: Path, **changes: Any) -> Path:
    path.mkdir(parents=True)
    checkpoint(path, **changes)
    return path


def cached(tmp_path: Path, name: str, *, weights: bool = True, **changes: Any) -> None:
    home = tmp_path / "hub" / f"models--{name.replace('/', '--')}"
    place = home / "snapshots" / "0123"
    place.mkdir(parents=True)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("0123")
    if weights:
        checkpoint(place)
    write_config(place, **changes)


# Available models


def catalog(folders: list[str], recent: list[str]) -> list[Model]:
    return arranged(source() for source in sources(folders, recent))


def test_all_local_models_are_listed_with_what_is_wrong_with_them(tmp_path: Path) -> None:
    folder(tmp_path / "mine" / "good")
    folder(tmp_path / "here" / "beside")
    odd = folder(tmp_path / "mine" / "odd")
    write_config(odd, hidden_act="gelu")
    (tmp_path / "mine" / "notes").mkdir()
    (tmp_path / "mine" / "notes" / "config.json").write_text('{"colour": "red"}')
    cached(tmp_path, "org/whole")
    cached(tmp_path, "org/empty", weights=False)
    cached(tmp_path, "org/bert", model_type="bert", architectures=["BertForMaskedLM"])
    found = catalog([str(tmp_path / "mine")], ["org/gone", str(tmp_path / "mine" / "good"), "/not/there"])
    good, beside = str(tmp_path / "mine" / "good"), str(tmp_path / "here" / "beside")
    assert [(model.name, model.place) for model in found] == [
        ("org/gone", "hub"),
        (good, "folder"),
        ("pocket", "built in"),
        (beside, "folder"),
        ("org/whole", "hub cache"),
        (str(odd), "folder"),
        ("org/bert", "hub cache"),
        ("org/empty", "hub cache"),
    ]
    trouble = {model.name: model.trouble for model in found if model.trouble}
    assert trouble == {
        str(odd): 'hidden_act is "gelu"; only silu is supported',
        "org/bert": 'architectures is ["BertForMaskedLM"]; it has no language-modeling head',
        "org/empty": "it holds neither model.safetensors nor model.safetensors.index.json",
    }
    assert found[1].recent and found[1].support is not None and found[1].support.bytes > 1000


def test_a_folder_may_be_a_model_itself_and_broken_ones_do_no_harm(tmp_path: Path) -> None:
    place = folder(tmp_path / "one")
    (place / "config.json").write_text("{")
    assert [model.name for model in catalog([str(place)], [])] == ["pocket"]
    checkpoint(place)
    assert [model.name for model in catalog([str(place)], [])] == ["pocket", str(place)]


# Downloading


# On the screen


async def picker(it: Any, query: str = "", expected: str = "built in") -> ModelScreen:
    await it.until(lambda: it.app.lifecycle.ready.is_set())
    await it.pilot.press("alt+o")
    await it.until(lambda: isinstance(it.app.screen, ModelScreen) and expected in it.screen_text())
    await it.pilot.press(*query)
    return it.app.screen


@run
async def test_another_model_is_picked_and_the_chats_are_kept(
    bench: Callable[..., Any], tmp_path: Path
) -> None:
    folder(tmp_path / "here" / "other")
    async with bench() as it:
        await it.answered(await it.say("hello"))
        await picker(it, "other")
        await it.until(lambda: "pocket" not in it.screen_text())
        await it.pilot.press("enter")
        await it.until(lambda: it.backend.switched == [str(tmp_path / "here" / "other")])
        await it.until(lambda: it.app.lifecycle.alive)
        assert it.texts() == [("user", "hello", "done"), ("assistant", "fine", "done")]
        await it.until(lambda: "loading" not in it.screen_text())
        assert len((await it.say("again")).prompt) == 3
        remembered = Remembered.read(it.app.paths.remembered)
        assert remembered.models == (str(tmp_path / "here" / "other"), "tiny")


@run
async def test_running_replies_end_with_their_text_and_a_reason(bench: Callable[..., Any]) -> None:
    backend = FakeBackend([snapshot(running=(0,))])
    async with bench(backend=backend) as it:
        reply = await it.say("hello")
        reply.say("half of")
        await it.until(lambda: it.app.chats.active.run.parts.text)
        backend.loaded.clear()
        await picker(it, "pocket")
        await it.pilot.press("enter")
        await it.until(lambda: "A reply is running; press Enter again to stop and load" in it.screen_text())
        assert it.texts()[-1][2] == "streaming"
        await it.pilot.press("enter")
        await it.until(lambda: it.texts()[-1] == ("assistant", "half of", "stopped"))
        await it.until(lambda: "stopped: pocket was chosen instead of tiny" in it.screen_text())
        await it.until(lambda: backend.progress is not None)
        backend.progress(5_000_000, 10_000_000)
        await it.until(lambda: "loading pocket  5.0 of 10.0 MB" in it.screen_text())
        it.main.prompt.put("meanwhile")
        await it.pilot.press("enter")
        await it.until(lambda: it.texts()[-1] == ("assistant", "", "streaming"))
        assert len(backend.replies) == 1
        await it.pilot.press("alt+o", "enter")
        await it.until(lambda: "pocket is loading" in it.screen_text())
        await it.pilot.press("escape")
        assert it.main.engine.owners == {}
        backend.loaded.set()
        await it.until(lambda: len(backend.replies) == 2)
        await it.answered(backend.replies[-1], "here")
        assert it.texts()[-1] == ("assistant", "here", "done")


@run
async def test_the_event_log_keeps_the_letters_of_replies_of_the_previous_model(
    bench: Callable[..., Any],
) -> None:
    backend = FakeBackend([snapshot()])
    async with bench((120, 40), backend=backend) as it:
        reply = await it.say("hello")
        backend.emit(Queued(1, 0.0, reply.id, 5))
        await it.answered(reply)
        await it.until(lambda: " A  queued" in it.screen_text())
        await picker(it, "pocket")
        await it.pilot.press("enter")
        await it.until(lambda: it.main.engine.owners == {})
        backend.emit(Died(2, 0.0, "gone"))
        await it.until(lambda: "died      gone" in it.screen_text())
        assert " A  queued" in it.screen_text()


@run
async def test_a_model_that_cannot_be_loaded_is_replaced_by_the_old_one(bench: Callable[..., Any]) -> None:
    backend = FakeBackend([snapshot()])
    backend.unloadable["pocket"] = UnsupportedModel("it is made of wood")
    async with bench((120, 30), backend=backend) as it:
        await picker(it)
        await it.pilot.press("enter")
        await it.until(lambda: backend.switched == ["pocket", "tiny"])
        await it.until(
            lambda: any("it is made of wood; tiny was reloaded" in notice for notice in it.notices())
        )
        assert it.app.lifecycle.model == "tiny" and it.app.lifecycle.alive
        await it.answered(await it.say("hello"))


@run
async def test_if_neither_model_can_be_loaded_the_screen_says_what_to_do(bench: Callable[..., Any]) -> None:
    backend = FakeBackend([snapshot()])
    backend.unloadable = {name: UnsupportedModel(f"no {name}") for name in ("pocket", "tiny")}
    async with bench((160, 30), backend=backend) as it:
        await picker(it)
        await it.pilot.press("enter")
        await it.until(lambda: "no pocket; cannot reload tiny: no tiny" in it.screen_text())
        assert "Alt+O chooses" in it.screen_text()
        backend.unloadable.clear()
        await picker(it)
        await it.pilot.press("enter")
        await it.until(lambda: it.app.lifecycle.alive)
        await it.answered(await it.say("hello"))


@run
async def test_an_unknown_name_is_reported(bench: Callable[..., Any]) -> None:
    async with bench((120, 30)) as it:
        await picker(it, "nothing")
        await it.until(lambda: "No model matches" in it.screen_text())
        await it.pilot.press("enter", "escape")
        assert it.app.screen is it.main


@run
async def test_a_folder_without_a_model_is_named(bench: Callable[..., Any]) -> None:
    with TemporaryDirectory() as folder:  # a short name: the sentence is on one line
        async with bench((120, 30)) as it:
            await picker(it, folder)
            trouble = "this folder has neither a config.json nor a GGUF file"
            await it.until(lambda: trouble in it.screen_text())
            await it.pilot.press("/")
            await it.until(lambda: trouble in it.screen_text())  # not: no model matches


@run
async def test_models_of_a_typed_folder_are_listed(bench: Callable[..., Any], tmp_path: Path) -> None:
    other = folder(tmp_path / "mine" / "other")
    async with bench((80, 24)) as it:
        await picker(it, "../mine")
        await it.until(lambda: "mine/other" in it.screen_text())
        await it.pilot.press("tab", "/")  # the field keeps the focus
        assert it.app.screen.query_one(Input).value == "../mine/"
        await it.until(lambda: "mine/other" in it.screen_text() and "No model" not in it.screen_text())
        await it.pilot.press("enter")
        await it.until(lambda: it.backend.switched == [str(other)])


@run
async def test_results_for_a_dialog_that_is_closing_are_dropped(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.pilot.press("alt+o")
        dialog = it.app.screen
        assert isinstance(dialog, ModelScreen)
        await it.pilot.press("escape")
        await it.until(lambda: not dialog.query(Input))
        dialog.on_resize()


@run
async def test_a_folder_that_hangs_blocks_neither_keys_nor_other_sources(
    bench: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = threading.Event()

    def hang(query: str) -> list[Model]:
        answer.wait(20)
        return []

    def with_one_that_hangs(*given: Any) -> list[Source]:
        def hanging() -> list[Model]:
            answer.wait(20)
            return [Model("org/late", "folder")]

        return [hanging, *sources(*given)]

    monkeypatch.setattr("minichat.features.models.sources", with_one_that_hangs)
    monkeypatch.setattr("minichat.features.models.local", hang)
    cached(tmp_path, "org/other")
    async with bench((120, 30)) as it:
        await picker(it, "o", "org/other")
        await it.pilot.press("down")
        answer.set()
        await it.until(lambda: "org/late" in it.screen_text())
        await it.pilot.press("enter")
        await it.until(lambda: it.backend.switched == ["org/other"])


@run
async def test_why_a_model_cannot_run_is_shown_below_it(bench: Callable[..., Any], tmp_path: Path) -> None:
    cached(tmp_path, "org/bert", model_type="bert", architectures=["BertForMaskedLM"])
    async with bench((120, 30)) as it:
        await picker(it, "pocket")
        await it.until(lambda: "11.0 MB on disk" in it.screen_text())
        await it.pilot.press("escape")
        await picker(it, "bert", "org/bert")
        await it.until(lambda: "it has no language-modeling head" in it.screen_text())
        await it.pilot.press("enter")
        assert isinstance(it.app.screen, ModelScreen)
        assert it.backend.switched == []


@run
async def test_a_hub_model_is_downloaded_and_loaded(bench: Callable[..., Any]) -> None:
    go_on, fetched = asyncio.Event(), []

    async def fake_fetch(name: str, progress: Progress) -> None:
        fetched.append(name)
        progress(400_000_000, 1_600_000_000)
        await go_on.wait()

    async with bench((120, 30)) as it:
        it.app.lifecycle.fetch = fake_fetch
        await picker(it, "org/large")
        await it.until(lambda: "Enter downloads" in it.screen_text())
        await it.pilot.press("enter")
        await it.until(lambda: "downloading large  0.40 of 1.60 GB  ^X cancels" in it.screen_text())
        await it.pilot.press("escape")
        await it.pilot.press("alt+o")
        await it.until(lambda: "downloading org/large  ^X cancels" in it.screen_text())
        await it.pilot.press("escape")
        await it.until(
            lambda: it.app.screen is it.main and "downloading large  0.40 of 1.60 GB" in it.screen_text()
        )
        await it.answered(await it.say("meanwhile"))
        go_on.set()
        await it.until(lambda: it.backend.switched == ["org/large"] == fetched)


@run
async def test_a_download_is_canceled(bench: Callable[..., Any]) -> None:
    async def fake_fetch(name: str, progress: Progress) -> None:
        progress(1, 2)
        await asyncio.Event().wait()

    async with bench((120, 30)) as it:
        it.app.lifecycle.fetch = fake_fetch
        await picker(it, "org/large")
        await it.pilot.press("enter")
        await it.until(lambda: "^X cancels" in it.screen_text())
        await it.pilot.press("ctrl+x")
        await it.until(lambda: "Download of large canceled" in it.screen_text())
        assert not it.app.lifecycle.fetching
        assert it.backend.switched == []


@run
async def test_a_missing_network_is_reported_in_the_dialog(bench: Callable[..., Any]) -> None:
    async def fake_fetch(name: str, progress: Progress) -> None:
        raise ModelNotFound(f"{name} is not on this machine, and the hub cannot be reached")

    async with bench((120, 30)) as it:
        it.app.lifecycle.fetch = fake_fetch
        await picker(it, "org/large")
        await it.pilot.press("enter")
        await it.until(lambda: "org/large is not on this machine, and the hub cannot be" in it.screen_text())
        await it.pilot.press("escape")
        assert it.app.screen is it.main
        await it.answered(await it.say("hello"))


@run
async def test_a_late_file_system_result_does_not_replace_the_error(
    bench: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = threading.Event()

    (found,) = local(str(folder(tmp_path / "away")))

    def late(query: str) -> list[Model]:
        answer.wait(20)
        return [replace(found, name=query)]

    async def fake_fetch(name: str, progress: Progress) -> None:
        raise ModelNotFound(f"{name} is not on this machine, and the hub cannot be reached")

    monkeypatch.setattr("minichat.features.models.local", late)
    async with bench((120, 30)) as it:
        it.app.lifecycle.fetch = fake_fetch
        await picker(it, "org/large")
        await it.pilot.press("enter")
        await it.until(lambda: "the hub cannot be" in it.screen_text())
        answer.set()
        await it.until(lambda: "Enter downloads" not in it.screen_text())
        assert "the hub cannot be" in it.screen_text()
        await it.pilot.press("r")
        await it.until(lambda: "the hub cannot be" not in it.screen_text())
