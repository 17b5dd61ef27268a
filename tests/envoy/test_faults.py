"""What goes wrong around the picker, with real Envoy: no endpoint, dying workers, leaving clients, stopping."""

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import zmq

from epp.settings import TransportName
from tests.envoy.chain import running_chain
from tests.envoy.streamed import everything, first_token, opened
from tests.waiting import eventually

SLOW = ("--inter-token-ms", "50")


def test_without_endpoints_the_client_gets_503_with_a_reason(tmp_path: Path, model_folder: Path) -> None:
    with running_chain(tmp_path, model_folder, workers=()) as chain:
        for answer in (chain.chat("hello"), chain.ask("GET", "/v1/models")):
            assert answer.status == 503
            assert answer.headers["content-type"].startswith("application/json")
            assert "endpoint" in answer.json()["error"]["message"]
        chain.settles()


def test_a_worker_that_dies_takes_only_its_own_requests_along(
    tmp_path: Path, model_folder: Path, carrier: TransportName
) -> None:
    with running_chain(tmp_path, model_folder, carrier=carrier, worker_arguments=SLOW) as chain:
        streams = [opened(chain.envoy.port, max_tokens=60) for _ in range(4)]
        for stream in streams:
            first_token(stream)
        chain.workers[0].process.kill()
        ended = [everything(stream) for stream in streams]
        assert any(b"[DONE]" in text for text in ended)
        chain.settles()
        eventually(lambda: chain.chat("go on").status == 200)
        assert chain.picker.process.poll() is None


def test_a_client_that_leaves_frees_its_slot(tmp_path: Path, model_folder: Path, carrier: TransportName) -> None:
    with running_chain(tmp_path, model_folder, carrier=carrier, workers=["w0"], worker_arguments=SLOW) as chain:
        stream = opened(chain.envoy.port, max_tokens=400)
        first_token(stream)
        assert chain.status()["exchanges"]["open"] == 1
        stream.close()
        chain.settles()


def test_sigterm_lets_a_running_stream_finish_and_exits_0(
    tmp_path: Path, model_folder: Path, carrier: TransportName
) -> None:
    with running_chain(tmp_path, model_folder, carrier=carrier, workers=["w0"], worker_arguments=SLOW) as chain:
        stream = opened(chain.envoy.port, max_tokens=40)
        first_token(stream)
        chain.picker.process.send_signal(signal.SIGTERM)
        assert b"[DONE]" in everything(stream)
        assert chain.picker.process.wait(timeout=20) == 0


def test_wrong_bytes_where_events_should_come_from_stop_nothing(tmp_path: Path, model_folder: Path) -> None:
    with spewing_port() as raw, junk_publisher() as junk:
        entries = [
            {"name": "raw", "address": "127.0.0.1", "ports": [1], "events_port": raw, "replay_port": raw},
            {"name": "junk", "address": "127.0.0.1", "ports": [2], "events_port": junk},
        ]
        settings = {"EPP_POLICY": "round-robin"}
        with running_chain(tmp_path, model_folder, more=entries, settings=settings) as chain:
            statuses = [chain.chat(f"hello {i}").status for i in range(8)]
            assert set(statuses) <= {200, 503}
            assert statuses.count(200) >= 4, "the healthy half serves; the ports without a worker are soon avoided"
            assert chain.picker.process.poll() is None


@contextmanager
def spewing_port() -> Iterator[int]:
    """A TCP port that answers every connection with bytes that are no ZMTP."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        over = threading.Event()

        def spew() -> None:
            while not over.is_set():
                try:
                    client, _ = server.accept()
                except TimeoutError:
                    continue
                with client:
                    client.sendall(b"\xff\x00HTTP/1.1 nonsense\r\n" * 200)

        thread = threading.Thread(target=spew)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            over.set()
            thread.join()


@contextmanager
def junk_publisher() -> Iterator[int]:
    """A ZMQ publisher whose messages have wrong frames and wrong batches."""
    over = threading.Event()
    with zmq.Context() as context, context.socket(zmq.PUB) as publisher:
        port = publisher.bind_to_random_port("tcp://127.0.0.1")
        junk = [
            [b""],
            [b"", b"short", b"x"],
            [b"", bytes(8), b"\xc1\xc1"],
            [b"", bytes(8), b"\x93\x01\x02\x03"],
            [b""] * 9,
        ]

        def publish() -> None:
            while not over.wait(0.01):
                for frames in junk:
                    publisher.send_multipart(frames)

        thread = threading.Thread(target=publish)
        thread.start()
        try:
            yield port
        finally:
            over.set()
            thread.join()
