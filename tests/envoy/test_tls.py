"""TLS as it is by default between a real Envoy and the picker: both carriers, whole bodies, drained like plain ones."""

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from epp.settings import BodyMode, TransportName
from tests.envoy.chain import running_chain, said

SECURE = {"EPP_SECURE_SERVING": "true"}


@pytest.mark.parametrize("response_body", [BodyMode.FULL_DUPLEX_STREAMED, BodyMode.NONE])
def test_chats_of_any_size_are_answered_over_tls(
    tmp_path: Path, model_folder: Path, carrier: TransportName, response_body: BodyMode
) -> None:
    envoy = {"picker_tls": True, "response_body": response_body}
    with running_chain(tmp_path, model_folder, carrier=carrier, settings=SECURE, envoy=envoy) as chain:
        for size in (10, 1000, 65_536, 250_000):
            for stream in (False, True):
                assert chain.chat("x" * size, stream=stream).status == 200
        assert chain.envoy.stats("cluster.picker.ssl.handshake")["cluster.picker.ssl.handshake"] > 0
        chain.settles()


def test_a_drain_over_tls_lets_running_streams_finish(
    tmp_path: Path, model_folder: Path, carrier: TransportName
) -> None:
    slow = ("--inter-token-ms", "100")
    settings = {**SECURE, "EPP_DRAIN_DELAY_SECONDS": "0"}
    envoy = {"picker_tls": True}
    with (
        running_chain(
            tmp_path, model_folder, carrier=carrier, settings=settings, worker_arguments=slow, envoy=envoy
        ) as chain,
        ThreadPoolExecutor(8) as pool,
    ):
        running = [pool.submit(chain.chat, f"story {i}", stream=True, max_tokens=30) for i in range(8)]
        while chain.status()["exchanges"]["open"] < 8:
            assert not any(answer.done() for answer in running)
        chain.picker.process.send_signal(signal.SIGTERM)
        answers = [answer.result(timeout=60) for answer in running]
        assert [answer.status for answer in answers] == [200] * 8
        assert all(said(answer) for answer in answers)
        assert chain.picker.process.wait(timeout=30) == 0
