"""What --verbose prints of a reply: its tokens, seconds and rate."""

from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from engine.api.events import Delta
from engine.api.params import SamplingParams
from engine.api.request import Finish
from minichat.commands import chat, generate
from minichat.commands.generate import ReplyCosts


class Replying:
    """A stream whose deltas arrive one second apart, and its clock."""

    prompt_tokens = 3

    def __init__(self, deltas: list[Delta]) -> None:
        self._deltas, self.now = deltas, 0.0
        self.accepted: Future[None] = Future()
        self.accepted.set_result(None)

    def __iter__(self) -> Iterator[Delta]:
        for delta in self._deltas:
            self.now += 1
            yield delta


@pytest.mark.parametrize(
    ("params", "deltas", "says"),
    [
        (
            SamplingParams(beams=4),
            [Delta(1), Delta(1), Delta(1, (5, 6, 7), "a b c", finish=Finish.STOP)],
            "reply 3 tokens in 3.000 s; first token after 1.000 s, then 1.0 tok/s",
        ),
        (
            SamplingParams(best_of=3),
            [Delta(1, tail="a"), Delta(1, tail="a b"), Delta(1, (5, 6, 7), "a b c", finish=Finish.STOP)],
            "reply 3 tokens in 3.000 s; first token after 1.000 s, then 1.0 tok/s",
        ),
        (
            SamplingParams(prompt_logprobs=1),
            [Delta(1), Delta(1, (5,), "a"), Delta(1, (6,), "b", finish=Finish.STOP)],
            "reply 2 tokens in 3.000 s; first token after 2.000 s, then 1.0 tok/s",
        ),
        (
            SamplingParams(),
            [Delta(1, (), finish=Finish.STOP)],
            "reply 0 tokens in 1.000 s; first token after 1.000 s",
        ),
    ],
    ids=["beams", "best of", "prompt", "empty"],
)
def test_the_first_token_is_left_out_of_the_rate(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    params: SamplingParams,
    deltas: list[Delta],
    says: str,
) -> None:
    stream = Replying(deltas)
    monkeypatch.setattr(generate, "time", SimpleNamespace(monotonic=lambda: stream.now))
    host = SimpleNamespace(submit=lambda *_, **__: stream)
    options = Namespace(json=False, verbose=True, adapter=[], deadline_ms=None)
    assert generate._reply(host, "hi", params, options, "") == 0
    assert capsys.readouterr().err == f"minichat: prompt 3 tokens, {says}\n"


def test_the_rate_is_that_of_the_tokens_after_the_first_piece() -> None:
    assert str(ReplyCosts(3, 41, 2.5, 0.5, 1)).endswith("first token after 0.500 s, then 20.0 tok/s")
    assert str(ReplyCosts(3, 41, 2.5, 0.5, 21)).endswith("then 10.0 tok/s")
    assert str(ReplyCosts(3, 3, 50.5, 0.5, 1)).endswith("then 0.04 tok/s")
    late = ReplyCosts(3, 8, 0.5004, 0.5, 1, decoding=0.07)  # all pieces were read together
    assert str(late).endswith("then 100.0 tok/s")
    assert str(ReplyCosts(1, 5, 0.3012, 0.3010, 5)) == (
        "prompt 1 token, reply 5 tokens in 0.301 s; first token after 0.301 s"
    )
    assert str(ReplyCosts(3, 40, 2.0)) == "prompt 3 tokens, reply 40 tokens in 2.000 s"
    assert str(ReplyCosts(3, 40, 2.0, replies=3)) == "prompt 3 tokens, 40 tokens of 3 replies in 2.000 s"


@pytest.mark.parametrize(("slower", "rate"), [(1, "1.5"), (5, "0.3"), (0.1, "15")])
def test_a_plain_chat_shows_the_same_rate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], slower: float, rate: str
) -> None:
    stream = Replying(
        [Delta(1), Delta(1, (5,), "a"), Delta(1, (6, 7), "b"), Delta(1, (8,), "c", finish=Finish.STOP)]
    )
    monkeypatch.setattr(chat, "time", SimpleNamespace(monotonic=lambda: stream.now * slower))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    host = SimpleNamespace(submit=lambda *_, **__: stream, has_template=False)
    chat.Talk(host, SamplingParams(), None)._answer("hi")  # type: ignore[arg-type]
    assert capsys.readouterr().out == f"abc\n\x1b[2m4 tokens, {rate} tok/s\x1b[0m\n"
