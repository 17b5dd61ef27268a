"""A worker is killed while requests flow; no cluster tells the picker."""

import signal
import threading
import time
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Self

import pytest

from tests.envoy.chain import Chain, running_chain
from tests.waiting import eventually

THREADS = 4
LONG_SECONDS = 5.0
"""Within which even a busy machine avoids a dead worker; 0.7 s on a quiet one (`make bench ONLY=dead`)."""


def test_after_the_first_failure_at_most_two_more_requests_fail(tmp_path: Path, model_folder: Path) -> None:
    """There may be no failure at all: the worker's closed event socket can be heard before a request meets it."""
    with running_chain(tmp_path, model_folder, workers=("w0", "w1", "w2")) as chain, Load(chain) as load:
        eventually(lambda: len(load.answers) > 20)
        chain.workers[0].process.kill()
        died = time.time()
        dead = f"127.0.0.1:{chain.workers[0].port}"
        eventually(lambda: chain.status()["suspects"]["suspended"] == [dead])
        first = min((ended for _, ended, _ in load.failures()), default=time.monotonic())
        eventually(lambda: len([begun for begun, _, status in load.answers if begun > first and status == 200]) > 20)
        load.stop()
        assert len([begun for begun, _, _ in load.failures() if begun > first]) <= 2
        assert chain.status()["suspects"]["suspended"] == [dead]
        late = [each["at"] - died for each in chain.decisions() if each["chosen"] == chain.workers[0].name]
        assert max(late, default=0.0) < LONG_SECONDS


@pytest.mark.parametrize("sign", ["EPP_KV_EVENTS", "EPP_ENGINE_METRICS"])
def test_a_worker_that_dies_unasked_costs_no_request(tmp_path: Path, model_folder: Path, sign: str) -> None:
    """Its event socket closes at once, and soon its metrics cannot be read; either is enough."""
    other = {"EPP_KV_EVENTS": "EPP_ENGINE_METRICS", "EPP_ENGINE_METRICS": "EPP_KV_EVENTS"}[sign]
    settings = {sign: "true", other: "false"}
    with running_chain(tmp_path, model_folder, workers=("w0", "w1"), settings=settings) as chain:
        assert all(chain.chat(f"before {i}").status == 200 for i in range(4))
        time.sleep(1)
        chain.workers[0].process.kill()
        dead = f"127.0.0.1:{chain.workers[0].port}"
        eventually(lambda: chain.status()["suspects"]["suspended"] == [dead])
        assert [chain.chat(f"after {i}").status for i in range(8)] == [200] * 8


BLIND = {"EPP_POLICY": "round-robin", "EPP_ENGINE_METRICS": "false", "EPP_KV_EVENTS": "false"}
"""Neither policy nor metrics nor events tell: only what becomes of requests, and questions."""


@pytest.mark.parametrize("settings", [{}, BLIND], ids=["default", "blind"])
def test_a_worker_that_accepts_and_never_answers_is_soon_avoided(
    tmp_path: Path, model_folder: Path, settings: Mapping[str, str]
) -> None:
    """As after the death of a node: nothing is closed, no request fails, only its silence tells."""
    workers = ("w0", "w1", "w2")
    with running_chain(tmp_path, model_folder, workers=workers, settings=settings) as chain, Load(chain) as load:
        eventually(lambda: len(load.answers) > 20)
        hole = chain.workers[0]
        hole.process.send_signal(signal.SIGSTOP)
        died = time.time()
        try:
            place = f"127.0.0.1:{hole.port}"
            eventually(lambda: place in chain.status()["suspects"]["suspended"])
            assert [chain.chat(f"after {i}").status for i in range(12)] == [200] * 12
            late = [each["at"] - died for each in chain.decisions() if each["chosen"] == hole.name]
            assert max(late, default=0.0) < LONG_SECONDS
        finally:
            hole.process.send_signal(signal.SIGCONT)
        eventually(lambda: chain.status()["suspects"]["suspended"] == [])


class Load:
    """Threads that ask one request after the other."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._going = True
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(THREADS)]
        self.answers: list[tuple[float, float, int]] = []
        """When it began, when it ended, and its status; 0: no answer."""

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._going = False
        for thread in self._threads:
            thread.join()

    def failures(self) -> list[tuple[float, float, int]]:
        return [answer for answer in list(self.answers) if answer[2] != 200]

    def _run(self, number: int) -> None:
        turn = 0
        while self._going:
            turn += 1
            begun = time.monotonic()
            try:
                status = self._chain.chat(f"thread {number} turn {turn}").status
            except (OSError, HTTPException):
                status = 0
            self.answers.append((begun, time.monotonic(), status))
