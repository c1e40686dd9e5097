"""Connections between machines: only who has the secret gets in, and only to who has it."""

import hmac
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from engine.api.errors import EngineError
from engine.host import joining
from engine.host.joining import Door, join
from tests.waiting import LIMIT


def aside(act: Callable[[], socket.socket]) -> "Future[socket.socket]":
    done: Future[socket.socket] = Future()

    def go() -> None:
        try:
            done.set_result(act())
        except Exception as error:
            done.set_exception(error)

    threading.Thread(target=go, daemon=True).start()
    return done


def test_both_ends_have_the_secret() -> None:
    door = Door("127.0.0.1")
    joined = aside(lambda: join(door.address, door.secret))
    ours, theirs = door.accept(10), joined.result(10)
    with ours, theirs:
        ours.sendall(b"question")
        assert theirs.recv(100) == b"question"
        assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert ours.gettimeout() is theirs.gettimeout() is None
    door.close()


def test_callers_without_it_are_turned_away_and_the_right_one_still_gets_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    door = Door("127.0.0.1")
    accepted = aside(lambda: door.accept(LIMIT))
    with pytest.raises((OSError, EngineError)):
        join(door.address, b"x" * 32)
    with socket.create_connection(door.address) as pickles:  # what a pickle would look like
        pickles.sendall(b"\x80\x04\x95" + bytes(200))
        pickles.settimeout(10)
        assert len(pickles.recv(32)) == 32
        with pytest.raises((ConnectionError, AssertionError)):
            assert pickles.recv(1)
    with monkeypatch.context() as soon, socket.create_connection(door.address) as silent:
        soon.setattr(joining, "PROVES_WITHIN", 0.01)
        assert len(silent.recv(32)) == 32
        assert not silent.recv(1)
    with join(door.address, door.secret) as right, accepted.result(LIMIT) as ours:
        right.sendall(b"hello")
        assert ours.recv(100) == b"hello"
    door.close()


def test_a_door_without_the_secret_is_noticed() -> None:
    """It may be what an attacker listens with, after the caller's proof."""
    listening = socket.create_server(("127.0.0.1", 0))

    def impostor() -> socket.socket:
        caller, _ = listening.accept()
        caller.sendall(b"n" * 32)
        got = b""
        while len(got) < 64:
            got += caller.recv(64 - len(got))
        caller.sendall(got[32:])  # the caller's own proof, sent back
        return caller

    called = aside(impostor)
    with pytest.raises(EngineError, match="does not have the secret"):
        join(listening.getsockname(), b"s" * 32)
    called.result(10).close()
    listening.close()


def test_a_proof_is_of_one_connection() -> None:
    """What was heard of one connection opens no other."""
    door, heard = Door("127.0.0.1"), list[bytes]()
    first = aside(lambda: door.accept(10))
    with socket.create_connection(door.address) as caller:
        nonce = caller.recv(32)
        heard.append(b"c" * 32 + hmac.digest(door.secret, b"caller" + nonce + b"c" * 32, "sha256"))
        caller.sendall(heard[0])
        first.result(10).close()
    again = aside(lambda: door.accept(LIMIT))
    with socket.create_connection(door.address) as caller:
        assert len(caller.recv(32)) == 32
        caller.sendall(heard[0])
        assert not caller.recv(1), "the door proves nothing to such a caller, and turns it away"
    with join(door.address, door.secret), again.result(LIMIT):
        door.close()


def test_the_wait_is_bounded_and_may_be_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "PROVES_WITHIN", 0.2)
    door = Door("127.0.0.1")
    slow = socket.create_connection(door.address)
    with slow, pytest.raises(EngineError, match=r"within 0.3 s"):
        door.accept(0.3)

    def look() -> None:
        raise EngineError("it has died")

    with pytest.raises(EngineError, match="it has died"):
        door.accept(10, look)
    door.close()
