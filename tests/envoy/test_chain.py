"""Requests through real Envoy, the picker and simulated workers: what a client sees."""

import http.client
import json
import random
import socket
import time

import pytest

from epp.simulate.engine.answers import is_answer
from tests.envoy.chain import SPOOFED, Chain, said
from tests.waiting import eventually


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize("size", [10, 5_000, 60_000])
def test_a_chat_is_answered_by_a_worker_that_got_its_exact_bytes(chain: Chain, stream: bool, size: int) -> None:
    text = "".join(random.Random(size).choices('aé漢 "\\', k=size))
    answer = chain.chat(text, stream=stream, stream_options={"include_usage": True}, max_tokens=30)
    assert answer.status == 200
    assert len(said(answer).split()) > 5
    if stream:
        assert b'"usage"' in answer.body


def test_a_request_without_a_body_goes_to_a_worker(chain: Chain) -> None:
    answer = chain.ask("GET", "/v1/models")
    assert answer.status == 200
    assert answer.json()["data"][0]["id"] == "simulated"


def test_a_client_cannot_name_its_endpoint(chain: Chain) -> None:
    for headers in (SPOOFED, {"x-gateway-destination-endpoint": f"127.0.0.1:{chain.envoy.admin_port}"}):
        assert chain.ask("GET", "/v1/models", headers=headers).status == 200
        assert chain.ask("POST", "/v1/chat/completions", b"no json", headers=headers).status == 400


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/chat/completions", b"{"), ("/unheard/of", b"\x00\xff" * 1000), ("/v1/completions", b"")]
)
def test_what_the_picker_does_not_understand_is_routed_and_the_worker_says_no(
    chain: Chain, path: str, body: bytes
) -> None:
    answer = chain.ask("POST", path, body)
    assert answer.status in {400, 404}
    assert answer.headers["server"] == "envoy"


@pytest.mark.parametrize("seed", range(5))
def test_a_body_cut_anywhere_arrives_whole(chain: Chain, seed: int) -> None:
    choices = random.Random(seed)
    text = "".join(choices.choices("ab é", k=choices.randrange(1, 90_000)))
    raw = json.dumps({"prompt": text, "max_tokens": 3}, ensure_ascii=False).encode()
    cuts = sorted(choices.choices(range(len(raw)), k=6))
    pieces = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True) if start < end]
    connection = http.client.HTTPConnection("127.0.0.1", chain.envoy.port, timeout=30)
    connection.request("POST", "/v1/completions", iter(pieces), dict(SPOOFED))
    answer = json.loads(connection.getresponse().read())
    connection.close()
    assert is_answer(raw, answer["choices"][0]["text"])


@pytest.mark.parametrize(
    "garbage", [b"\x00" * 5000, b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 99, b""]
)
def test_wrong_bytes_on_the_grpc_port_stop_nothing(chain: Chain, garbage: bytes) -> None:
    with socket.create_connection(("127.0.0.1", chain.picker.port), timeout=10) as stranger:
        stranger.sendall(garbage)
        stranger.shutdown(socket.SHUT_WR)
        stranger.settimeout(1)
        try:
            while stranger.recv(4096):
                pass
        except (TimeoutError, ConnectionError):
            pass
    assert chain.chat("still there").status == 200


def test_everything_that_began_has_ended(chain: Chain) -> None:
    assert chain.chat("one more").status == 200
    chain.settles()


def test_the_workers_metrics_are_read_and_their_events_followed(chain: Chain) -> None:
    eventually(lambda: chain.status()["engine_metrics"]["stale"] == 0)
    assert [rank["connected"] for rank in chain.status()["kv"]["ranks"]] == [True, True]


def test_predicted_cached_tokens_are_those_that_the_workers_report(chain: Chain) -> None:
    chain.settles()
    before = chain.status()["fidelity"]
    for turn in range(1, 6):
        assert chain.chat("the same beginning " * 40 * turn).status == 200
        time.sleep(0.1)
    chain.settles()
    after = chain.status()["fidelity"]
    assert after["compared"] - before["compared"] == 5
    assert after["equal"] - before["equal"] == 5
    assert after["predicted_tokens"] > before["predicted_tokens"]
