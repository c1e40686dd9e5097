"""The sockets of a rank on another machine: who has the secret gets in, with all four of them."""

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.api.errors import BadInput, BadWire, EngineError
from engine.api.places import MeetingPlace
from engine.distributed.crews.channels import RankChannels, accept_channels, open_channels
from engine.distributed.crews.joined import be_rank
from engine.distributed.crews.steps import StepReceiver, StepSender
from engine.distributed.messages import Kind
from engine.distributed.ring import HEAD
from engine.host.joining import Door, WrongSecret, join

SECRET = b"s" * 32


def test_ranks_get_in_with_all_of_their_sockets() -> None:
    """Beside one that does not open all, and one that sends something else."""
    door = Door("127.0.0.1", 0, SECRET)
    with ThreadPoolExecutor(3) as pool:
        accepted = pool.submit(accept_channels, door, 2, 20.0)
        incomplete = join(door.address, SECRET)
        incomplete.sendall(bytes(17))
        odd = join(door.address, SECRET)
        odd.sendall(b"\xff" * 17)
        theirs = [pool.submit(open_channels, door.address, SECRET).result(20) for _ in range(2)]
        ours = accepted.result(20)
    assert incomplete.recv(1) == odd.recv(1) == b""
    for rank, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        for number, (here, there) in enumerate(zip(one, other, strict=True)):
            there.sendall(bytes([rank, number]))
            assert here.recv(2) == bytes([rank, number])
        assert one.host == one.own_host == other.host == "127.0.0.1"
    for each in (*ours, *theirs):
        each.close()
    for left in (incomplete, odd):
        left.close()
    door.close()


def test_another_secret_gets_no_one_in(tmp_path: Path) -> None:
    (wrong := tmp_path / "wrong").write_text("another secret, which is long enough")
    wrong.chmod(0o600)
    door = Door("127.0.0.1", 0, SECRET)
    with ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(accept_channels, door, 1, 20.0)
        with pytest.raises(WrongSecret, match="does not accept the secret"):
            be_rank(MeetingPlace(*door.address, wrong), "cpu", lambda line: None)
        open_channels(door.address, SECRET).close()
        (ours,) = accepted.result(20)
    ours.close()
    door.close()


def test_a_port_in_use_is_named() -> None:
    door = Door("127.0.0.1")
    with pytest.raises(EngineError, match=f"cannot listen at 127.0.0.1:{door.address[1]}: Address already"):
        Door(*door.address)
    door.close()


def steps() -> tuple[StepSender, StepReceiver, RankChannels]:
    pairs = [socket.socketpair() for _ in RankChannels._fields]
    return StepSender([pairs[3][0]]), StepReceiver(pairs[3][1]), RankChannels(*(ours for ours, _ in pairs))


def test_messages_arrive_in_order_and_whole() -> None:
    sender, receiver, channels = steps()
    sent = [b"", b"step", bytes(300_000)]
    with ThreadPoolExecutor(1) as pool:
        numbers = pool.submit(lambda: [sender.send(Kind.STEP, each) for each in sent])
        found = [receiver.receive() for _ in sent]
        assert numbers.result() == [0, 1, 2]
    assert [(each.number, each.kind, each.payload) for each in found if each] == [
        (number, Kind.STEP, each) for number, each in enumerate(sent)
    ]
    assert receiver.receive(0.0) is None
    channels.close()
    with pytest.raises(EOFError):
        receiver.receive()
    with pytest.raises(BrokenPipeError):
        sender.send(Kind.STEP, b"")


@pytest.mark.parametrize("head", [(1, 1, 4), (0, 1, -1), (0, 1, 2**40)])
def test_wrong_messages_are_refused(head: tuple[int, int, int]) -> None:
    _, receiver, channels = steps()
    channels.steps.sendall(HEAD.pack(*head))
    with pytest.raises(BadWire, match="message 0 has the number"):
        receiver.receive()
    channels.close()


def test_where_to_meet_is_read(tmp_path: Path) -> None:
    assert MeetingPlace.parse("10.0.0.5:7000:/a:b") == ("10.0.0.5", 7000, Path("/a:b"))
    assert MeetingPlace.parse("[::1]:7000:secret") == ("::1", 7000, Path("secret"))
    for wrong in ("10.0.0.5", "10.0.0.5:7000", "10.0.0.5:0:a", "10.0.0.5:70000:a", ":1:a", "::1:7000:a"):
        with pytest.raises(BadInput, match="meet must be HOST:PORT:FILE"):
            MeetingPlace.parse(wrong)


def test_a_secret_is_long_and_the_users_alone(tmp_path: Path) -> None:
    place = MeetingPlace("host", 1, tmp_path / "secret")
    with pytest.raises(BadInput, match=r"cannot read the secret in .*: No such file"):
        place.secret()
    place.file.write_text("  short\n")
    place.file.chmod(0o600)
    with pytest.raises(BadInput, match="must have at least 16 bytes"):
        place.secret()
    place.file.write_text("sixteen bytes it is\n")
    found = place.secret()
    place.file.write_text("sixteen bytes it is")
    assert place.secret() == found
    assert len(found) == 32
    place.file.chmod(0o640)
    with pytest.raises(BadInput, match="others may read the secret"):
        place.secret()
