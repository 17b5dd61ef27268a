"""Workers that do as a test says: answer with any status, hold a request, show any metrics page."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

ANSWER = b'{"object": "chat.completion", "choices": [{"message": {"role": "assistant", "content": "yes"}}]}'


@dataclass
class Stub:
    """One worker; what it holds back it gives when `free` is set."""

    name: str
    port: int = 0
    status: int = 200
    metrics: str = ""
    held: bool = False
    free: Event = field(default_factory=Event)
    asked: list[dict[str, str]] = field(default_factory=list)
    """Headers of each request, names in lower case."""

    def entry(self, **more: object) -> dict[str, object]:
        """Its entry in an endpoints file."""
        return {"name": self.name, "address": "127.0.0.1", "ports": [self.port], **more}


def _handler(stub: Stub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self._skip_body()
            stub.asked.append({name.lower(): value for name, value in self.headers.items()})
            if stub.held:
                stub.free.wait(60)
            self._answer(stub.status, ANSWER, "application/json")

        def do_GET(self) -> None:
            found = bool(stub.metrics) or self.path != "/metrics"
            self._answer(200 if found else 404, stub.metrics.encode(), "text/plain")

        def _skip_body(self) -> None:
            if (length := self.headers["content-length"]) is not None:
                self.rfile.read(int(length))
                return
            while size := int(self.rfile.readline(), 16):  # full duplex bodies come in chunks
                self.rfile.read(size + 2)
            self.rfile.readline()

        def _answer(self, status: int, body: bytes, content_type: str) -> None:
            self.send_response(status)
            self.send_header("content-type", content_type)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return Handler


@contextmanager
def running_stubs(*names: str) -> Iterator[list[Stub]]:
    """One worker of each name."""
    with ExitStack() as stack:
        stubs = [Stub(name) for name in names]
        for stub in stubs:
            server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(stub))
            server.daemon_threads = True
            stub.port = server.server_port
            thread = Thread(target=server.serve_forever)
            thread.start()
            stack.callback(server.server_close)
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            stack.callback(stub.free.set)
        yield stubs
