"""The program on a real terminal, attached to engines that outlive it."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from minichat.clients.address import KEY_VARIABLE
from minichat.models.residents import Resident, home_of
from minichat.shell.paths import locate
from tests.app.display.test_terminal import ENDED, Tmux, gone, terminal
from tests.attach.proxy import Proxy
from tests.cli.conftest import Run, run
from tests.server.conftest import KEY, OWNER, Served, dry, serving

__all__ = ["run", "terminal"]

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")

TOKENS = 60  # in a reply
RATE = 20  # tokens a second


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home folder, with replies long enough for things to happen while they stream."""
    for name in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.delenv(f"XDG_{name}_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    config = locate({"HOME": str(tmp_path)}).settings
    config.parent.mkdir(parents=True)
    config.write_text(f"[sampling]\nignore_eos = true\nmax_tokens = {TOKENS}\n")


@pytest.fixture
def proxied() -> Iterator[tuple[Served, Proxy]]:
    with serving(dry(rate=RATE), drain=0.2) as served:
        proxy = Proxy(served.port)
        yield served, proxy
        proxy.close()


def answer(tmux: Tmux) -> tuple[str, str, int]:
    """The newest reply in the store: state, text, and its number of tokens once it has ended."""
    message = tmux.messages()[-1]
    return message.state, message.text, message.stats.tokens if message.stats else 0


def ask(tmux: Tmux) -> None:
    tmux.until(lambda screen: "attached to" in screen)
    tmux.type("Tell me a story.", "Enter")
    tmux.until(lambda _: len(tmux.messages()) == 2 and answer(tmux)[1])


@pytest.mark.soak
def test_a_link_cut_and_restored(terminal: Callable[..., Tmux], proxied: tuple[Served, Proxy]) -> None:
    served, proxy = proxied
    tmux = terminal("attach", proxy.url.removeprefix("http://") + "/v1")
    ask(tmux)
    proxy.cut()
    tmux.until(lambda screen: "no link to 127.0.0.1" in screen)
    tmux.type("typed meanwhile")
    tmux.until(lambda screen: "typed meanwhile" in screen)
    [request] = served.host.snapshot().requests
    assert request.generated < TOKENS  # cut in the middle of the reply, which continues
    proxy.restore()
    tmux.until(lambda screen: "attached to" in screen and " waited " in screen)
    state, text, tokens = answer(tmux)
    assert (state, tokens) == ("stopped", TOKENS)  # max_tokens was reached
    tmux.type("C-u", "C-q")
    tmux.until(lambda screen: f"{ENDED} 0" in screen)
    assert served.host.snapshot().state == "ready"
    [again] = served.state.replies.of(OWNER)
    assert text == "".join(delta.text for delta in again.deltas)


def test_killing_the_screen_loses_nothing(terminal: Callable[..., Tmux], run: Run, tmp_path: Path) -> None:
    resident = Resident(home_of(locate({"HOME": str(tmp_path)})))
    tmux = terminal("up", "--dry-run", f"--rate={2 * RATE}")
    try:
        ask(tmux)
        process = tmux.program()
        os.kill(process, signal.SIGKILL)
        tmux.until(lambda screen: ENDED in screen)
        assert gone(process)
        assert resident.running()
        assert answer(tmux)[0] == "stopped"
        tmux("kill-server")
        (tmp_path / "tmux").unlink(missing_ok=True)
        tmux = terminal("up", "--dry-run")
        tmux.until(lambda screen: " waited " in screen and "attached to engine main" in screen)
        state, text, tokens = answer(tmux)
        assert (state, tokens) == ("stopped", TOKENS)  # max_tokens was reached
        assert len(text.split()) > TOKENS // 2
        assert len(tmux.messages()) == 2
        tmux.type("C-q")
        screen = tmux.until(lambda screen: f"{ENDED} 0" in screen)
        assert "main is running as a dry run; open it: minichat attach; stop it: minichat down" in screen
        assert resident.running()
        assert run("down", "--now").code == 0
        assert not resident.running()
    finally:
        resident.tell(signal.SIGKILL)


def test_why_an_engine_cannot_be_attached_to(
    terminal: Callable[..., Tmux], proxied: tuple[Served, Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.server.native.control.VERSION", 0)
    tmux = terminal("attach", proxied[1].url)
    screen = tmux.until(lambda screen: ENDED in screen)
    sentence = "minichat: the engine uses protocol version 0, this program 1; update the engine"
    assert sentence in screen
    assert f"{ENDED} 1" in screen


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["http://u:p@host"], "an address must not contain a password"),
        (["ftp://host"], "invalid address"),
        (["http://host:99999"], "invalid address 'http://host:99999'; use http://host:8000"),
        (["http://[::1"], "invalid address 'http://[::1'; use http://host:8000"),
        (["host", "--uds=x"], "cannot be combined"),
        (["http://host", "--name=x"], "--name is of an engine of this machine, and cannot be combined"),
        (["--uds=x", "--name=main"], "--name is of an engine of this machine, and cannot be combined"),
        (["host", "--api-key-file=/nowhere"], "cannot read"),
        ([], "needs a terminal"),
    ],
)
def test_bad_usage(run: Run, words: list[str], error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if error != "needs a terminal":
        monkeypatch.setattr("minichat.commands.attach.check_terminal", lambda command: None)
    ran = run("attach", *words)
    assert ran.code == 2
    assert error in ran.err
