"""Cutting the link at any moment loses no token, no change and no event."""

import asyncio
from hashlib import sha256
from pathlib import Path
from ssl import SSLCertVerificationError

import httpx
import pytest

from engine.api.commands import Abort, MeasureSpeeds, Preempt, SetKvScheme, SetQuantization, SetSwitch, Update
from engine.api.errors import (
    BadInput,
    BadParams,
    BadWire,
    EngineDead,
    EngineError,
    RequestTooLong,
    UnknownRequest,
)
from engine.api.events import Finished, FirstToken, Queued, Switched
from engine.api.params import SamplingParams
from engine.api.request import Finish
from minichat.clients.address import Address
from minichat.clients.link import Link
from minichat.clients.protocol import LinkBack, LinkLost, Progress
from tests.app.conftest import at_once, run, whole
from tests.attach.conftest import Attached, attached, no_progress, text_of
from tests.server.conftest import KEY, Served, dry, saying, serving, user
from tests.server.tools.test_tools import THINKING

LONG = SamplingParams(max_tokens=40, ignore_eos=True)
BYTES = (1, 30, 90, 150, 260, 400, 700, 1500)
ENDLESS = SamplingParams(max_tokens=4000, ignore_eos=True)


async def read(it: Attached, tag: str = "", params: SamplingParams = LONG) -> str:
    return text_of(await whole(await it.backend.submit("tell me", params, tag=tag)))


async def wait_for_steps(it: Attached, server: Served) -> None:
    """Wait until the engine has run several steps."""
    before = server.host.snapshot().step
    await it.until(lambda: server.host.snapshot().step > before + 3)


@run
async def test_a_screen_knows_that_the_template_opens_the_reasoning(tmp_path: Path) -> None:
    with serving(saying(tmp_path, "hm</think>yes", THINKING)) as served:
        async with attached(served) as it:
            assert it.backend.opens_thinking


@run
async def test_all_requests_of_a_screen_work_remotely(served: Served) -> None:
    async with attached(served) as it:
        backend, host = it.backend, served.host
        shot = await backend.snapshot()
        assert (shot.model, shot.state, backend.has_template) == (host.snapshot().model, "ready", True)
        deltas = await whole(await backend.submit(user("hello"), LONG.changed(logprobs=3)))
        assert sum(len(delta.tokens) for delta in deltas) == 40
        assert deltas[-1].finish is Finish.LENGTH
        top = [token for token, _ in deltas[0].logprobs[0].top]
        assert backend.words(top) == [piece.decode() for piece in host.pieces(top)]
        assert await backend.layout(user("hello")) == host.layout(user("hello"))
        assert await backend.layout("hello") == host.layout("hello")
        tokens = [token for delta in deltas for token in delta.tokens]
        assert await backend.texts(tokens) == host.texts(tokens)
        await backend.send(SetSwitch("prefix_cache", False))
        switches = {each.name: each.on for each in (await backend.snapshot()).switches}
        assert not switches["prefix_cache"]
        await backend.send(SetSwitch("prefix_cache", True))
        await it.until(lambda: len(it.events_of(Switched)) == 2)
        assert {Queued, FirstToken, Finished} <= {type(event) for event in it.received}


@run
async def test_a_running_reply_is_updated_forked_preempted_and_aborted(slow: Served) -> None:
    async with attached(slow) as it:
        backend = it.backend
        reply = await backend.submit(user("hello"), ENDLESS)
        batches = reply.batches(at_once)
        tokens = sum(len(delta.tokens) for delta in await anext(batches))
        fork = await backend.fork(reply.id, ENDLESS.changed(max_tokens=500))
        assert fork.prompt_tokens > reply.prompt_tokens
        before = fork.prompt_tokens - reply.prompt_tokens  # the prompt's tokens count, too
        await backend.send(Preempt(reply.id))
        await backend.send(Update(reply.id, {"max_tokens": 500}))
        with slow.at_full_speed():
            assert before + sum(len(delta.tokens) for delta in await whole(fork)) == 500
            assert tokens + sum([len(delta.tokens) async for batch in batches for delta in batch]) == 500
        other = await backend.submit("tell me", ENDLESS)
        await backend.send(Abort((other.id,)))
        assert (await whole(other))[-1].finish is Finish.ABORTED
        with pytest.raises(UnknownRequest):
            await backend.send(Update(other.id, {"top_k": 3}))
        with pytest.raises(UnknownRequest):
            await backend.fork(10**6, LONG)


@run
async def test_an_engine_error_keeps_its_message(served: Served) -> None:
    async with attached(served) as it:
        with pytest.raises(BadParams, match="top_p"):
            await it.backend.send(Update(0, {"top_p": 7}))
        with pytest.raises(RequestTooLong, match="tokens"):
            await it.backend.submit("word " * 70_000, SamplingParams(max_tokens=5))
        with pytest.raises(BadInput, match="warp"):
            await it.backend.send(SetSwitch("warp", True))
        with pytest.raises(BadInput, match="'int4': the weights of this engine cannot be changed"):
            await it.backend.send(SetQuantization("int4"))
        with pytest.raises(BadInput, match="unknown KV scheme 'int3'"):
            await it.backend.send(SetKvScheme("int3"))
        with pytest.raises(BadInput, match="dry run"):
            await it.backend.send(MeasureSpeeds())
        assert it.events_of(LinkLost) == []


@run
async def test_a_redirect_reports_its_target() -> None:
    def respond(request: httpx.Request) -> httpx.Response:
        return httpx.Response(308, headers={"location": "https://box/engine"})

    link = Link(Address("http://box"), transport=httpx.MockTransport(respond))
    with pytest.raises(BadInput, match=r"http://box/engine redirects to 'https://box/engine'"):
        await link.open()
    await link.close()


@run
async def test_a_cut_during_a_reply_loses_nothing(slow: Served) -> None:
    longer = LONG.changed(max_tokens=500)  # it outlasts both cuts
    async with attached(slow) as it:
        with slow.at_full_speed():
            expected = await read(it, params=longer)
        reading = asyncio.create_task(read(it, params=longer))
        passed = it.proxy.passed
        await it.until(lambda: it.proxy.passed > passed + 600)
        for _ in range(2):
            before = len(it.events_of(LinkLost))
            it.proxy.cut()
            await it.until(lambda n=before: len(it.events_of(LinkLost)) > n)
            await wait_for_steps(it, slow)
            it.proxy.restore()
            await it.back()
            passed = it.proxy.passed
            await it.until(lambda passed=passed: it.proxy.passed > passed + 300)
        with slow.at_full_speed():
            assert await reading == expected


@run
async def test_a_cut_at_any_byte_loses_nothing(served: Served) -> None:
    """Also inside an event, a header, or the response to the request that starts a reply."""
    async with attached(served) as it:
        expected = await read(it)
        for byte in BYTES:
            it.proxy.cut_after = byte
            reading = asyncio.create_task(read(it, tag=f"at-{byte}"))
            await it.until(lambda: not it.proxy.whole)
            it.proxy.restore()
            assert await reading == expected, byte
            if it.events_of(LinkLost):
                await it.back()
            it.received.clear()
        digest = sha256(KEY.encode()).digest()
        begun = [each.tag for each in served.state.replies.of(digest) if each.tag.startswith("at-")]
        assert len(begun) == len(set(begun)) == len(BYTES)  # some were submitted twice but started once


@run
async def test_events_during_a_cut_are_reported_after_it(slow: Served) -> None:
    async with attached(slow) as it:
        await read(it, params=LONG.changed(max_tokens=2))
        await it.until(lambda: it.events_of(Finished))
        it.proxy.cut()
        await it.lost()
        it.received.clear()
        slow.host.submit("meanwhile", SamplingParams(max_tokens=2)).result()
        it.proxy.restore()
        await it.until(lambda: it.events_of(Finished))
        assert it.events_of(Queued)


@run
async def test_requests_during_a_cut_are_sent_after_it(slow: Served) -> None:
    async with attached(slow) as it:
        running = await it.backend.submit("tell me", ENDLESS)
        reading = asyncio.create_task(whole(running))
        it.proxy.cut()
        await it.lost()
        asked = [
            asyncio.create_task(work)
            for work in (it.backend.send(Abort((running.id,))), it.backend.snapshot(), read(it), read(it))
        ]
        await wait_for_steps(it, slow)
        assert not any(each.done() for each in asked)
        it.proxy.restore()
        assert (await reading)[-1].finish is Finish.ABORTED
        _, shot, one, other = await asyncio.gather(*asked)
        assert shot.state == "ready"
        assert one == other != ""


@run
async def test_a_reply_is_resumed_by_its_tag(slow: Served) -> None:
    async with attached(slow) as it:
        expected = await read(it)
        await it.backend.submit("tell me", LONG, tag="mine")
        endless = await it.backend.submit("tell me", ENDLESS, tag="endless")
    async with attached(slow) as it:
        running = await it.backend.resume("endless")
        assert running is not None
        assert running.lasted is None
        await it.backend.send(Abort((endless.id,)))
        past = await it.backend.resume("mine")
        assert past is not None
        assert running.age < past.age < 60
        assert text_of(await whole(past.reply)) == expected
        again = await it.backend.resume("mine")
        assert again is not None
        assert again.lasted is not None
        assert again.first is not None
        assert 0 < again.first < again.lasted < again.age
        assert text_of(await whole(again.reply)) == expected
        assert await it.backend.resume("yours") is None


@run
async def test_a_different_engine_at_the_same_address_is_detected(own: Served) -> None:
    async with attached(own) as it:
        reply = await it.backend.submit("tell me", ENDLESS)
        reading = asyncio.create_task(whole(reply))
        await it.until(lambda: it.events_of(FirstToken))
        it.proxy.cut()
        await it.lost()
        with serving(dry(rate=50)) as other:
            it.proxy.restore(other.port)
            assert (await it.back()).restarted
            with pytest.raises(EngineDead, match="was restarted"):
                await reading
            assert await read(it) != ""


@run
async def test_the_link_is_down_while_the_engine_is_replaced(own: Served) -> None:
    async with attached(own) as it:

        class Replacing:
            async def ensure(self, progress: Progress) -> None:
                with pytest.raises(EngineDead, match="the connection was closed"):
                    await it.backend.snapshot()

            def gone(self, *, told: bool) -> str:
                return ""

        it.backend._home = Replacing()
        assert (await it.backend.switch("", no_progress)).state == "ready"
        assert not it.events_of(LinkLost) and not it.events_of(LinkBack)


@run
async def test_a_silent_connection_counts_as_cut(slow: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minichat.clients.link.SILENCE", 0.1)
    async with attached(slow) as it:
        await it.lost()
        assert it.events_of(LinkLost)[0].why == "it stopped responding"
        assert not (await it.back()).restarted


def untrusted(code: int) -> SSLCertVerificationError:
    """18: self-signed; 62: of another name; 10: expired."""
    error = SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code = code
    return error


@pytest.mark.parametrize("file", ["nothing.pem", "link.pem"])
@run
async def test_certificates_that_cannot_be_read_are_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: str
) -> None:
    (tmp_path / "link.pem").write_text("no certificate")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / file))
    with pytest.raises(BadInput, match=f"cannot read the certificates of SSL_CERT_FILE, .*{file}: "):
        await Link(Address("https://127.0.0.1:1")).open()


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (
            untrusted(18),
            "its certificate is not trusted (as httpx says it); set SSL_CERT_FILE to trust others",
        ),
        (untrusted(62), "its certificate is not trusted (as httpx says it); use the name in it"),
        (untrusted(10), "its certificate is not trusted (as httpx says it)"),
        (ConnectionRefusedError(111, "refused"), "no connection (refused)"),
        (OSError("All connection attempts failed"), "no connection"),
    ],
)
@run
async def test_connection_errors_are_classified_by_their_cause(cause: Exception, words: str) -> None:
    def respond(request: httpx.Request) -> httpx.Response:
        try:
            raise cause
        except OSError as error:
            raise httpx.ConnectError("as httpx says it") from error

    link = Link(Address("https://box"), transport=httpx.MockTransport(respond))
    with pytest.raises(EngineDead) as caught:
        await link.open()
    assert words in str(caught.value)
    assert (words == "no connection") == str(caught.value).endswith(": no connection")
    assert "trusted" not in words or str(caught.value).endswith(words)
    await link.close()


@pytest.mark.parametrize(("status", "kind"), [(404, BadWire), (502, EngineDead), (401, EngineError)])
@run
async def test_a_server_that_is_no_engine_is_rejected(status: int, kind: type[EngineError]) -> None:
    """The status code means something else than it would from an engine."""
    transport = httpx.MockTransport(lambda request: httpx.Response(status, text="-"))
    link = Link(Address("http://box"), transport=transport)
    with pytest.raises(kind):
        await link.open()
    await link.close()


class TestOpening:
    async def open_with(self, server: Served, key: str = KEY) -> None:
        link = Link(Address(server.url, key=key))
        try:
            await link.open()
        finally:
            await link.close()

    @run
    async def test_a_wrong_key_is_reported(self, served: Served) -> None:
        with pytest.raises(BadInput, match="invalid API key"):
            await self.open_with(served, "sk-wrong")
        with pytest.raises(
            BadInput, match="missing API key; use --api-key-file FILE or set MINICHAT_API_KEY"
        ):
            await self.open_with(served, "")

    @run
    async def test_an_unreachable_server_is_reported(self) -> None:
        link = Link(Address("http://127.0.0.1:1"))
        with pytest.raises(EngineDead, match=r"no answer from 127\.0\.0\.1:1: no connection"):
            await link.open()
        await link.close()

    @run
    @pytest.mark.parametrize(("version", "outdated"), [(0, "the engine"), (2, "this program")])
    async def test_another_protocol_version_is_reported(
        self, served: Served, version: int, outdated: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("engine.server.native.control.VERSION", version)
        expected = f"the engine uses protocol version {version}, this program 1; update {outdated}"
        with pytest.raises(BadWire, match=expected):
            await self.open_with(served)

    @run
    async def test_a_newer_protocol_version_after_a_restart_ends_the_link(
        self, slow: Served, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with attached(slow) as it:
            reading = asyncio.create_task(read(it, params=ENDLESS))
            await it.until(lambda: it.events_of(FirstToken))
            it.proxy.cut()
            await it.lost()
            monkeypatch.setattr("engine.server.native.control.VERSION", 2)
            it.proxy.restore()
            await it.until(lambda: it.events_of(LinkLost)[-1].ended)
            assert "update this program" in it.events_of(LinkLost)[-1].why
            assert it.events_of(LinkLost)[-1].answers
            with pytest.raises(EngineDead, match="update this program"):
                await reading
            with pytest.raises(EngineDead, match="update this program"):
                await it.backend.snapshot()
            monkeypatch.setattr("engine.server.native.control.VERSION", 1)
            assert (await it.backend.load(lambda *_: None)).state == "ready"
            slow.host.send(Abort(tuple([each.id for each in slow.host.snapshot().requests]))).result()
