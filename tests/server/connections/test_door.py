"""Access: keys, paths, hosts, sockets and TLS."""

import asyncio
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from engine.api.errors import BadInput
from engine.host.thread import EngineThread
from engine.server.config import ServerConfig
from engine.server.http.auth import prefix_salt
from engine.server.http.binding import tcp_socket, unix_socket
from engine.server.http.listen import server
from minichat.cli import parser
from minichat.clients.address import Address
from minichat.clients.link import Link
from minichat.commands.serve import announce
from minichat.shell.paths import locate
from tests.server.conftest import KEY, MODEL, PLAIN, Served, dry, raw, serving
from tests.waiting import LIMIT, becomes

OTHER = "sk-other-0123456789abcdef"
PATHS = [
    "/v1/models",
    "/v1/models/x",
    "/metrics",
    "/engine",
    "/engine/snapshot",
    "/engine/replies",
    "/events",
    "/openapi.json",
    "/nothing/here",
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "given",
    [
        "",
        "Bearer",
        f"Bearer {KEY}x",
        f"Bearer {KEY[:-1]}",
        KEY,
        f"Basic {KEY}",
        "Bearer \u00fc",
        "Bearer a b",
    ],
)
def test_only_health_is_answered_without_the_key(served: Served, path: str, given: str) -> None:
    headers = {"Authorization": given.encode("latin-1")} if given else {}
    with served.client(headers=headers) as client:
        answer = client.get(path)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert answer.headers["www-authenticate"] == "Bearer"
    assert KEY not in answer.text


@pytest.mark.parametrize("other", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic eA=="}])
def test_the_key_may_be_in_x_api_key(served: Served, other: dict[str, str]) -> None:
    for key, status in ((KEY, 200), (KEY[:-1], 401), (f"Bearer {KEY}", 401), ("", 401)):
        with served.client(headers={"x-api-key": key} | other) as client:
            assert client.get("/v1/models").status_code == status


def test_health_needs_no_key_and_reports_only_the_state(served: Served) -> None:
    answer = httpx.get(f"{served.url}/health")
    assert (answer.status_code, answer.json()) == (200, {"status": "ready"})


def test_health_reports_the_warm_up_and_requests_do_not_wait_for_it() -> None:
    compiled = threading.Event()
    engine = dry()
    engine.runner.graph_sizes = (1, 2, 4, 8)
    engine.runner.start_compiling = lambda kinds: [compiled]
    with serving(engine, warm=True) as one, one.client() as client:
        answer = client.get("/health")
        assert answer.status_code == 503
        assert answer.json()["status"] == "warming"
        assert 0 <= answer.json()["share"] < 1
        reply = client.post("/v1/completions", json={"prompt": [5, 6], "max_tokens": 4})
        assert reply.json()["usage"]["completion_tokens"] == 4
        assert client.get("/health").json()["status"] == "warming"
        compiled.set()
        assert becomes(lambda: client.get("/health").json() == {"status": "ready"})


@pytest.mark.parametrize(
    "path",
    [
        "/health/../v1/models",
        "/health/%2e%2e/engine",
        "//engine",
        "/./engine",
        "/health%00",
        "/health/",
        "/HEALTH",
        "/health;/../engine",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/engine/../health",
        "/v1/models/..%2f..%2fetc%2fpasswd",
    ],
)
def test_no_path_bypasses_the_key(served: Served, path: str) -> None:
    assert raw(served, f"GET {path} HTTP/1.1").split(b"\r\n")[0] == b"HTTP/1.1 401 Unauthorized"


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "//etc/passwd", "/..", "/%2e%2e/x", "/engine/replies/..%2f..", "/%ff", "/v1"]
)
def test_odd_paths_are_not_found_with_the_key(served: Served, path: str) -> None:
    answer = raw(served, f"GET {path} HTTP/1.1", f"Authorization: Bearer {KEY}")
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"root:" not in answer


@pytest.mark.parametrize(
    "line", [b"GET", b"GET \xff\xfe HTTP/1.1", b"\x16\x03\x01\x02\x00", b"GET / HTTP/9.9", b"A" * 100]
)
def test_malformed_http_is_refused(served: Served, line: bytes) -> None:
    assert raw(served, line)[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 505")


def test_the_size_of_a_request_head_is_limited(served: Served) -> None:
    for lines in (
        [f"X-{n}: a" for n in range(200)],
        [f"X: {'a' * 70_000}"],
        [f"X-{n}: {'a' * 999}" for n in range(99)],
    ):
        assert raw(served, "GET /health HTTP/1.1", *lines).startswith(b"HTTP/1.1 431 ")
    assert raw(served, f"GET /health?{'a' * 70_000} HTTP/1.1").startswith(b"HTTP/1.1 431 ")
    assert raw(served, "GET /health HTTP/1.1", f"X: {'a' * 9_000}").startswith(b"HTTP/1.1 200 ")


def test_the_error_for_a_wrong_method_names_it(client: httpx.Client) -> None:
    for method, path in (
        ("GET", "/v1/completions"),
        ("DELETE", "/v1/models"),
        ("OPTIONS", "/v1/completions"),
    ):
        answer = client.request(method, path)
        assert answer.status_code == 405
        assert method in answer.json()["error"]["message"]


class TestWithoutAKey:
    @pytest.mark.parametrize(
        ("host", "origin", "status"),
        [
            ("localhost", "", 200),
            ("127.0.0.1:1234", "", 200),
            ("[::1]:80", "", 200),
            ("evil.example", "", 403),
            ("evil.example:8000", "", 403),
            ("localhost.evil.example", "", 403),
            ("localhost:8000", "http://localhost:8000", 200),
            ("localhost:8000", "https://evil.example", 403),
            ("localhost:8000", "null", 403),
        ],
    )
    def test_pages_of_other_sites_are_refused(
        self, open_door: Served, host: str, origin: str, status: int
    ) -> None:
        headers = {"Host": host} | ({"Origin": origin} if origin else {})
        assert httpx.get(f"{open_door.url}/v1/models", headers=headers, verify=PLAIN).status_code == status

    def test_a_request_that_another_sites_page_starts_is_refused(self, open_door: Served) -> None:
        """Such as an image: browsers send no Origin with it."""
        for site, status in ("cross-site", 403), ("same-origin", 200), ("none", 200):
            headers = {"Sec-Fetch-Site": site}
            assert httpx.get(f"{open_door.url}/v1/models", headers=headers).status_code == status

    @pytest.fixture(scope="class")
    def open_door(self):  # type: ignore[no-untyped-def]
        with serving(dry(), keys=()) as served:
            yield served


SITE, OTHER_SITE = "http://localhost:3000", "https://evil.example"
ASKING = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,x-more"}


@pytest.mark.parametrize("keys", [(), (KEY,)])
def test_pages_of_an_allowed_site_may_call(keys: tuple[str, ...]) -> None:
    """A browser asks first, without the key."""
    with serving(dry(), keys=keys, origins=(SITE,)) as served:
        url = f"{served.url}/v1/completions"
        for origin, allowed in (SITE, True), (OTHER_SITE, False):
            asked = httpx.options(url, headers={"Origin": origin, **ASKING})
            assert (asked.headers.get("access-control-allow-origin") == origin) == allowed
            assert asked.is_success == allowed
        deletes = {"Origin": SITE, "Access-Control-Request-Method": "DELETE"}
        assert httpx.options(f"{served.url}/engine/replies/x", headers=deletes).is_success
        headers = {"Authorization": f"Bearer {KEY}"} if keys else {}
        body = {"prompt": "hi", "max_tokens": 3, "stream": True}
        answer = httpx.post(url, json=body, headers={"Origin": SITE, **headers})
        assert answer.is_success
        assert answer.text.endswith("data: [DONE]\n\n")
        assert answer.headers["access-control-allow-origin"] == SITE
        refused = httpx.post(url, json=body, headers={"Origin": OTHER_SITE, **headers})
        assert "access-control-allow-origin" not in refused.headers
        assert refused.is_success == bool(keys), "without a key, the origin decides"


def test_two_keys_share_no_cached_prefix(tmp_path: Path) -> None:
    text = " ".join(f"the same words {n}" for n in range(60))
    with serving(dry(), keys=(KEY, OTHER)) as served:

        def cached(key: str) -> int:
            answer = httpx.post(
                f"{served.url}/v1/completions",
                json={"prompt": text, "max_tokens": 1},
                headers={"Authorization": f"Bearer {key}"},
            )
            usage = answer.json()["usage"]
            return int(usage["prompt_tokens_details"]["cached_tokens"])

        assert [cached(KEY), cached(KEY) > 64, cached(OTHER), cached(OTHER) > 64] == [0, True, 0, True]


def test_salts_of_different_keys_differ() -> None:
    assert prefix_salt(b"") == b""
    assert prefix_salt(b"a") != prefix_salt(b"b")


class TestSockets:
    def test_a_unix_socket_is_private_to_its_owner(self, tmp_path: Path) -> None:
        path = tmp_path / "engine.sock"
        bound = unix_socket(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with pytest.raises(BadInput, match="another server"):
            unix_socket(path)
        host = EngineThread(dry())
        built = server(host, ServerConfig(name=MODEL, any_host=True))
        thread = threading.Thread(target=built.run, args=([bound],), daemon=True)
        thread.start()
        assert becomes(lambda: built.started)
        with httpx.Client(
            transport=httpx.HTTPTransport(uds=str(path)), base_url="http://engine", timeout=LIMIT
        ) as client:
            assert client.get("/v1/models").json()["data"][0]["id"] == MODEL
        built.end()
        thread.join(10)
        host.close()

    def test_only_a_stale_socket_is_replaced(self, tmp_path: Path) -> None:
        path = tmp_path / "engine.sock"
        unix_socket(path).close()
        unix_socket(path).close()
        path.unlink()
        path.write_text("precious")
        with pytest.raises(BadInput, match="not a socket"):
            unix_socket(path)
        assert path.read_text() == "precious"

    def test_a_bad_port_is_a_clear_error(self, served: Served) -> None:
        with pytest.raises(BadInput, match=f"port {served.port}.*--port"):
            tcp_socket("127.0.0.1", served.port)
        with pytest.raises(BadInput, match=r"on 192\.0\.2\.1 port 0: [A-Z]"):  # no error number
            tcp_socket("192.0.2.1", 0)
        with pytest.raises(BadInput, match="port 70000"):
            tcp_socket("127.0.0.1", 70_000)

    @pytest.mark.parametrize("password", ["", "secret"])
    def test_tls_with_files(self, password: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
        if (openssl := shutil.which("openssl")) is None:
            pytest.skip("no openssl to make a certificate with")
        locked = f"-passout pass:{password}" if password else "-nodes"
        files = f"-keyout {key} -out {certificate}"
        words = f"req -x509 -newkey rsa:2048 {locked} -days 2 -subj /CN=localhost {files}"
        names = ["-addext", "subjectAltName=IP:127.0.0.1"]
        subprocess.run([openssl, *words.split(), *names], capture_output=True, check=True)
        host = EngineThread(dry())
        bound = tcp_socket("127.0.0.1", 0)
        config = ServerConfig(name=MODEL, keys=(KEY,))
        built = server(host, config, certificate=certificate, key=key, password=password)
        thread = threading.Thread(target=built.run, args=([bound],), daemon=True)
        thread.start()
        assert becomes(lambda: built.started)
        url = f"https://127.0.0.1:{bound.getsockname()[1]}"
        context = ssl.create_default_context(cafile=certificate)
        assert httpx.get(f"{url}/health", verify=context).status_code == 200
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))  # for a tunnel to another machine, too
        asyncio.run(self._attach(Address(url, key=KEY)))
        built.end()
        thread.join(10)
        host.close()

    @staticmethod
    async def _attach(address: Address) -> None:
        link = Link(address)
        await link.open()
        await link.close()


@pytest.mark.parametrize("terminal", [True, False])
def test_a_start_shows_the_key_on_a_terminal_only(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    with socket.socket() as bound:
        announce(parser().parse_args(["serve", "--uds", "here"]), (KEY,), bound, Path("here"))
    shown = f": {KEY}" if terminal else ""
    assert f"the key is in {locate().server_key}{shown}\n" in capsys.readouterr().err
