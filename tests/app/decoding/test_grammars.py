"""Entering a grammar in the decoding drawer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

from engine.api.errors import BadParams
from engine.api.params import Grammar
from minichat.features.decoding.feature import ask_for_grammar
from minichat.session.decoding import grammar_of
from tests.app.conftest import run
from tests.app.decoding.test_decoding import row


@run
async def test_a_schema_from_a_file_constrains_the_reply(bench: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "person.json"
    file.write_text('{"type": "object"}')
    async with bench((100, 40)) as it:
        reply = await it.say("hello")
        await it.pilot.press("f3")
        row(it, "grammar")
        await it.until(lambda: "Enter: JSON schema file or /regex/" in it.screen_text())
        await it.pilot.press("enter")
        await it.until(lambda: "Grammar: the file of a JSON schema" in it.screen_text())
        it.app.screen.query_one(Input).value = str(file)
        await it.pilot.press("enter")
        await it.until(lambda: reply.params.grammar == Grammar("json", '{"type": "object"}'))
        assert it.app.store.chat(it.app.chats.active.chat.id).params.grammar, "stored with the chat"
        row(it, "speculate")
        await it.pilot.press("right")
        await it.until(lambda: "grammar" in it.drawer.knobs.trouble)
        row(it, "grammar")
        await it.pilot.press("delete")
        await it.until(lambda: reply.params.grammar is None)
        await it.pilot.press("enter")
        await it.until(lambda: "Grammar: the file of a JSON schema" in it.screen_text())
        it.app.screen.query_one(Input).value = "nowhere.json"
        await it.pilot.press("enter")
        await it.until(
            lambda: any(
                "cannot read nowhere.json: No such file or directory. A regex" in notice
                for notice in it.notices()
            )
        )


def test_a_grammar_as_the_user_writes_it() -> None:
    assert grammar_of(" /[0-9]+/ ") == Grammar("regex", "[0-9]+")
    assert grammar_of("  ") is None
    long = "[a-z]" * 100  # longer than a file's name may be
    assert grammar_of(f"/{long}/") == Grammar("regex", long)
    with pytest.raises(BadParams, match="cannot read"):
        grammar_of("/")
    with pytest.raises(BadParams, match="grammar: invalid regex: unclosed group"):
        grammar_of("/(/")


def test_a_file_that_is_not_a_json_schema_is_refused(tmp_path: Path) -> None:
    for text, why in (("x", "is not a JSON schema"), ('{"type": 3}', "type must be a string")):
        (tmp_path / "schema.json").write_text(text)
        with pytest.raises(BadParams, match=why):
            grammar_of(str(tmp_path / "schema.json"))


@run
async def test_an_invalid_grammar_is_refused_when_it_is_entered(bench: Callable[..., Any]) -> None:
    async with bench((120, 40)) as it:
        ask_for_grammar(it.app.context)
        await it.until(lambda: it.app.screen.query(Input))
        it.app.screen.query_one(Input).value = "/(/"
        await it.pilot.press("enter")
        await it.until(lambda: any("unclosed group" in notice for notice in it.notices()))
        await it.until(lambda: [each.value for each in it.app.screen.query(Input)] == ["/(/"])
        assert it.app.chats.active.chat.params.grammar is None
        await it.pilot.press("backspace", *"x)/", "enter")
        await it.until(lambda: it.app.chats.active.chat.params.grammar == Grammar("regex", "(x)"))


@run
async def test_an_untouched_field_keeps_a_schema_that_it_does_not_show(bench: Callable[..., Any]) -> None:
    schema, regex = Grammar("json", '{"type": "object"}'), Grammar("regex", "[0-9]+")
    async with bench((120, 40)) as it:
        chat = it.app.chats.active
        for grammar, cleared in ((schema, schema), (regex, None)):
            chat.tune(chat.chat.params.changed(grammar=grammar))
            for erased, left in ((False, grammar), (True, cleared)):
                ask_for_grammar(it.app.context)
                await it.until(lambda: it.app.screen.query(Input))
                await it.pilot.press(*(["backspace"] if erased else []), "enter")
                await it.until(lambda: it.app.screen is it.main)
                assert chat.chat.params.grammar == left
