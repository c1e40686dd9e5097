"""Replies of a model whose template ends the prompt in <think>, without a screen."""

import io
import json
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import TEMPLATE, Run, write_model

SHORT = ("--temperature", 0, "--max-tokens", 4)


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("thinker"), f"{TEMPLATE}<think>\n")


def test_a_reply_begins_with_the_tag_that_the_template_writes(run: Run, thinker: Path) -> None:
    reply = run("generate", "--model", thinker, *SHORT, "the")
    record = json.loads(run("generate", "--model", thinker, *SHORT, "--json", "the").out)
    several = json.loads(
        run("generate", "--model", thinker, "--max-tokens", 4, "--n", 2, "--json", "the").out
    )
    assert reply.out.startswith("<think>\n") and reply.out.count("<think>") == 1
    assert record["text"].removesuffix("\n") + "\n" == reply.out and record["tokens"] == 4
    assert all(each["text"].startswith("<think>\n") for each in several)


@pytest.mark.parametrize("options", [("--raw",), ("--regex", "[ab]{3}")])
def test_a_reply_without_reasoning_has_no_tag(run: Run, thinker: Path, options: tuple[str, ...]) -> None:
    ran = run("generate", "--model", thinker, *SHORT, *options, "the")
    assert ran.code == 0 and "<think>" not in ran.out


def test_a_plain_chat_shows_the_tag(run: Run, thinker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("a\nb\n"))
    ran = run("chat", "--plain", "--model", thinker, *SHORT)
    assert ran.code == 0 and ran.out.count("<think>\n") == 2 and ran.out.startswith("<think>\n")
