"""Many clients of a server in a separate process: sockets and one selector, so that they cost little."""

import selectors
import socket
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection


@dataclass
class Client:
    socket: socket.socket
    requests: list[bytes] = field(default_factory=list)
    sent: float = 0.0
    began: bool = False  # the first token of the current reply has arrived
    tail: bytes = b""

    def send(self) -> None:
        self.began, self.tail, self.sent = False, b"", time.perf_counter()
        self.socket.sendall(self.requests.pop(0))


def work(pipe: Connection, port: int, count: int) -> None:
    """Receive a list of requests for each client; at "go", send them: each client one after the other.

    Return the seconds to the first token of each reply through the pipe.
    """
    selector = selectors.DefaultSelector()
    clients = []
    for _ in range(count):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        clients.append(Client(connection))
        selector.register(connection, selectors.EVENT_READ, clients[-1])
    while (message := pipe.recv()) is not None:
        if message == "go":
            pipe.send(_round(selector, clients))
        else:
            for client, own in zip(clients, message, strict=True):
                client.requests = own


def _round(selector: selectors.BaseSelector, clients: list[Client]) -> list[float]:
    times, running = [], len(clients)
    for client in clients:
        client.send()
    while running:
        for key, _ in selector.select():
            client = key.data
            if not (data := client.socket.recv(65536)):
                raise ConnectionError("the server closed the connection")
            text = client.tail + data
            if not client.began and b"data: " in text:
                client.began = True
                times.append(time.perf_counter() - client.sent)
            client.tail = text[-64:]
            if client.tail.endswith(b"\r\n0\r\n\r\n") and b"[DONE]" in client.tail:
                if client.requests:
                    client.send()
                else:
                    running -= 1
    return times
