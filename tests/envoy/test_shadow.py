"""`epp shadow` beside another picker: a real Envoy with both filters, the second one in observability mode."""

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from epp.cli import main
from epp.settings import BodyMode
from epp.simulate.envoy import EnvoyConfig, running_envoy
from epp.simulate.processes import Picker, Worker, running_picker, running_workers
from tests.envoy.chain import Chain, worker_options
from tests.waiting import eventually

LONG = "the file has one test that fails " * 40


@dataclass(frozen=True)
class Pair:
    """Somebody else's picker, which takes the workers in turn, and the one that watches."""

    other: Picker
    shadow: Picker
    workers: list[Worker]

    @contextmanager
    def chain(self, mode: BodyMode) -> Iterator[Chain]:
        config = EnvoyConfig(picker_port=self.other.port, shadow_port=self.shadow.port, shadow_body=mode)
        with running_envoy(config) as envoy:
            yield Chain(envoy, self.other, self.workers)

    def status(self) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.shadow.admin_port}/status", timeout=10) as response:
            return json.load(response)

    def seen(self) -> tuple[int, int, int]:
        """Requests compared, prompts whose tokens were known, and answers whose first token was seen."""
        status = self.status()
        found = status["comparison"]
        calibration = found["calibration"] or {"requests": 0}
        return found["compared"], status["prompts"]["read"].get("tokenizer", 0), calibration["requests"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("shadow")
    with running_workers(dict.fromkeys(("w0", "w1", "w2"), worker_options(model_folder)), folder) as workers:
        file = folder / "endpoints.json"
        file.write_text(json.dumps({"endpoints": [worker.entry() for worker in workers]}))
        given = {"EPP_ENDPOINTS_FILE": str(file), "EPP_TOKENIZER_PATH": str(model_folder)}
        with (
            running_picker({**given, "EPP_POLICY": "round-robin"}, folder) as other,
            running_picker(given, folder, command="shadow") as shadow,
        ):
            yield Pair(other, shadow, workers)


@pytest.mark.parametrize(
    ("mode", "shows_bodies"),
    [
        (BodyMode.STREAMED, True),
        # Envoy shows bodies in observability mode only with STREAMED; the others leave headers to compare by.
        (BodyMode.FULL_DUPLEX_STREAMED, False),
        (BodyMode.NONE, False),
        (BodyMode.BUFFERED, False),
        (BodyMode.BUFFERED_PARTIAL, False),
    ],
)
def test_what_each_body_mode_shows(pair: Pair, mode: BodyMode, shows_bodies: bool) -> None:
    compared, tokens, first_tokens = pair.seen()
    with pair.chain(mode) as chain:
        for i in range(4):
            answer = chain.chat(f"{i} {LONG}", stream=True)
            assert answer.status == 200, "the watcher must not be noticed"
        eventually(lambda: pair.status()["exchanges"]["open"] == 0)
        now = pair.seen()
        assert now[0] - compared == 4
        assert now[1] - tokens == (4 if shows_bodies else 0)
        assert now[2] - first_tokens == (4 if shows_bodies else 0)


def test_the_report_tells_what_affinity_would_have_been_worth(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    with pair.chain(BodyMode.STREAMED) as chain:
        for i in range(12):
            answer = chain.chat(f"conversation {i % 2} {LONG}", stream=i % 3 > 0)
            assert answer.status == 200
        eventually(lambda: pair.status()["exchanges"]["open"] == 0)
    assert main(["shadow", "--report", "--json", "--url", f"http://127.0.0.1:{pair.shadow.admin_port}"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert 0 < report["same"] < report["compared"], "the other picker takes the workers in turn"
    assert report["our_cached_tokens"] > report["served_cached_tokens"]
    assert report["reported_cached_tokens"] >= 0
    assert report["calibration"]["requests"] >= 8
    assert report["verdict"]
