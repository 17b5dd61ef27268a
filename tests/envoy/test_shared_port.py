"""Two data-parallel ranks behind one port, through real Envoy: the worker is told which one, and only by us."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from tests.envoy.chain import Chain, running_gateway


class Worker(BaseHTTPRequestHandler):
    """Answers with the rank that it was asked for, as a worker with several would serve from it."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        while size := int(self.rfile.readline(), 16):  # full duplex bodies come in chunks
            self.rfile.read(size + 2)
        self.rfile.readline()
        body = json.dumps({"ranks": self.headers.get_all("x-data-parallel-rank")}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def shared_port() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Worker)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_worker_is_told_the_rank_and_a_client_cannot_name_one(tmp_path: Path, model_folder: Path) -> None:
    with shared_port() as port:
        entry = {"name": "w", "address": "127.0.0.1", "ports": [port], "event_ranks": 2, "rank_by_header": True}
        settings = {"EPP_POLICY": "round-robin", "EPP_ENGINE_METRICS": "false"}
        with running_gateway(tmp_path, model_folder, [entry], settings) as (picker, envoy):
            chain = Chain(envoy, picker, [])
            body = b'{"messages": [{"role": "user", "content": "short"}]}'
            spoofed = {"x-data-parallel-rank": "7", "content-type": "application/json"}
            answers = [chain.ask("POST", "/v1/chat/completions", body, spoofed).json() for _ in range(4)]
            assert [answer["ranks"] for answer in answers] == [["0"], ["1"], ["0"], ["1"]]
            chain.settles()
