"""The whole chain of one test: a real Envoy, `epp serve` and its workers."""

import http.client
import json
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epp.settings import TransportName
from epp.simulate.engine.answers import is_answer
from epp.simulate.envoy import RUN_HEADER, Envoy, EnvoyConfig, running_envoy
from epp.simulate.processes import Picker, Worker, running_picker, running_workers
from tests.waiting import eventually

SPOOFED = {"x-gateway-destination-endpoint": "127.0.0.1:1"}


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes
    headers: Mapping[str, str]

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Chain:
    envoy: Envoy
    picker: Picker
    workers: list[Worker]

    def ask(self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = SPOOFED) -> Answer:
        """One request through Envoy; the client tries to name an endpoint of its own, as it never may."""
        connection = http.client.HTTPConnection("127.0.0.1", self.envoy.port, timeout=30)
        try:
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            answer = Answer(
                response.status, response.read(), {name.lower(): value for name, value in response.getheaders()}
            )
        finally:
            connection.close()
        assert answer.headers[RUN_HEADER] == self.envoy.nonce
        return answer

    def chat(self, text: str, **fields: object) -> Answer:
        """One chat; the worker's words prove that it received exactly these bytes."""
        raw = json.dumps({"messages": [{"role": "user", "content": text}], "max_tokens": 4, **fields}).encode()
        answer = self.ask("POST", "/v1/chat/completions", raw)
        if answer.status == 200:
            assert is_answer(raw, said(answer))
        return answer

    def status(self) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.picker.admin_port}/status", timeout=10) as response:
            return json.load(response)

    def decisions(self) -> Any:
        """The last decisions, newest first."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.picker.admin_port}/decisions", timeout=10) as response:
            return json.load(response)

    def settles(self) -> None:
        """Every exchange that began has ended."""
        eventually(lambda: self.status()["exchanges"]["open"] == 0)


def said(answer: Answer) -> str:
    """The text of a unary or a streamed chat answer."""
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return str(answer.json()["choices"][0]["message"]["content"])
    lines = [line.removeprefix("data: ") for line in answer.body.decode().splitlines() if line]
    assert lines[-1] == "[DONE]"
    choices = [choice for line in lines[:-1] for choice in json.loads(line)["choices"]]
    return "".join(choice["delta"].get("content", "") for choice in choices)


@contextmanager
def running_chain(
    folder: Path,
    model: Path,
    *,
    carrier: TransportName = TransportName.GRPCIO,
    workers: Sequence[str] = ("w0", "w1"),
    more: Sequence[Mapping[str, object]] = (),
    worker_arguments: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
    envoy: Mapping[str, Any] | None = None,
) -> Iterator[Chain]:
    """`more` are further entries of the endpoints file."""
    with running_workers(dict.fromkeys(workers, (*worker_options(model), *worker_arguments)), folder) as running:
        entries = [*(worker.entry() for worker in running), *more]
        given = {"EPP_TRANSPORT": carrier, **(settings or {})}
        with running_gateway(folder, model, entries, given, envoy) as (picker, proxy):
            yield Chain(proxy, picker, running)


def worker_options(model: Path) -> tuple[str, ...]:
    """A worker that costs no time."""
    fast = ("--inter-token-ms", "1", "--prefill-tokens-per-second", "1e7", "--blocks", "20000")
    return ("--tokenizer", str(model), "--debug", *fast)


@contextmanager
def running_gateway(
    folder: Path,
    model: Path,
    entries: Sequence[Mapping[str, object]],
    settings: Mapping[str, str],
    envoy: Mapping[str, Any] | None = None,
) -> Iterator[tuple[Picker, Envoy]]:
    """A picker that knows the endpoints of `entries`, and an Envoy that asks it."""
    file = folder / "endpoints.json"
    file.write_text(json.dumps({"endpoints": list(entries)}))
    given = {"EPP_ENDPOINTS_FILE": str(file), "EPP_TOKENIZER_PATH": str(model), **settings}
    with (
        running_picker(given, folder) as picker,
        running_envoy(EnvoyConfig(picker_port=picker.port, **(envoy or {}))) as proxy,
    ):
        yield picker, proxy
