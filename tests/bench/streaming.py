"""A server that streams replies of the requested lengths at once."""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Streaming(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()
        count = asked["max_tokens"]
        for _ in range(count):
            self._event({"choices": [{"text": "a"}]})
        self._event({"usage": {"prompt_tokens": len(asked["prompt"]), "completion_tokens": count}})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, value: object) -> None:
        self.wfile.write(b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n")

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def streaming_server() -> Iterator[tuple[str, dict[str, int]]]:
    """Its base URL and its processes, as `started_server` returns them."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Streaming)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", {"front": os.getpid()}
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
