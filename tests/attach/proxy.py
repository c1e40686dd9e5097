"""A TCP proxy that can be cut and restored."""

import socket
import threading
from contextlib import suppress


class Proxy:
    """Listens and forwards bytes to a server, unless it is cut."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._gate = threading.Lock()
        self.whole = True
        self._pairs: set[socket.socket] = set()
        self.passed = 0  # bytes from the server so far
        self.cut_after: int | None = None  # cut after this number of further bytes from the server
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self) -> None:
        """Break all open connections and refuse new ones."""
        with self._gate:
            self.whole = False
            for each in self._pairs:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            self._pairs.clear()

    def restore(self, port: int | None = None) -> None:
        with self._gate:
            self._to = port or self._to
            self.whole, self.cut_after = True, None

    def close(self) -> None:
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._join(near)

    def _join(self, near: socket.socket) -> None:
        with self._gate:
            if not self.whole:
                near.close()
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                near.close()
                return
            self._pairs |= {near, far}
        for source, to, counted in ((near, far, False), (far, near, True)):
            threading.Thread(target=self._pass, args=(source, to, counted), daemon=True).start()

    def _pass(self, source: socket.socket, to: socket.socket, counted: bool) -> None:
        with suppress(OSError):
            while part := source.recv(65536):
                if counted and (last := self._last(len(part))) is not None:
                    to.sendall(part[:last])
                    self.cut()
                    return
                to.sendall(part)
        for each in (source, to):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _last(self, bytes: int) -> int | None:
        """How many of these bytes pass before a requested cut, or None; only one connection makes it."""
        with self._gate:
            if self.cut_after is not None and bytes >= self.cut_after:
                last, self.cut_after = self.cut_after, None
                return last
            self.passed += bytes
            if self.cut_after is not None:
                self.cut_after -= bytes
            return None
