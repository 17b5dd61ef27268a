"""Prefill on one worker, decoding on another, through real Envoy and a sidecar of each kind."""

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from epp.simulate.processes import Worker, running_workers
from tests.envoy.chain import Chain, running_gateway, worker_options

LONG = "the file has one test that fails " * 200


@contextmanager
def split_pool(folder: Path, model: Path, kind: str) -> Iterator[Chain]:
    """A prefill and a decode worker, the latter behind a sidecar of that kind; first the prefill worker."""
    options = worker_options(model)
    with running_workers({"prefill": options}, folder) as (prefill,):
        known = ("--instance-id", "7", "--prefill-worker", f"4=127.0.0.1:{prefill.port}") if kind == "dynamo" else ()
        with running_workers({"decode": (*options, "--sidecar", kind, *known)}, folder) as (decode,):
            ids = {"prefill": 4, "decode": 7} if kind == "dynamo" else {}
            entries = [
                worker.entry()
                | {"role": worker.name}
                | ({"dynamo_instance_id": ids[worker.name]} if worker.name in ids else {})
                for worker in (prefill, decode)
            ]
            with running_gateway(folder, model, entries, {"EPP_DISAGGREGATION_UNCACHED_TOKENS": "500"}) as (
                picker,
                envoy,
            ):
                yield Chain(envoy, picker, [prefill, decode])


def generated(worker: Worker) -> int:
    """Tokens that the worker has generated: a prefill is one."""
    with urllib.request.urlopen(f"http://127.0.0.1:{worker.port}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return next(int(float(line.split()[-1])) for line in lines if line.startswith("vllm:generation_tokens_total"))


@pytest.mark.parametrize("kind", ["llm-d", "dynamo"])
def test_a_long_new_prompt_is_prefilled_elsewhere(tmp_path: Path, model_folder: Path, kind: str) -> None:
    with split_pool(tmp_path, model_folder, kind) as chain:
        for stream in (False, True):
            answer = chain.chat(f"{stream} {LONG}", stream=stream)
            assert answer.status == 200, answer.body
        assert [generated(worker) for worker in chain.workers] == [2, 8]
        # Dynamo's sidecar refuses a decode worker that is left to prefill alone, so there nothing is too short.
        assert chain.chat("short").status == 200
        assert [generated(worker) for worker in chain.workers] == [3 if kind == "dynamo" else 2, 12]
        chain.settles()


def test_a_client_cannot_name_the_prefill_worker(tmp_path: Path, model_folder: Path) -> None:
    with split_pool(tmp_path, model_folder, "llm-d") as chain:
        headers = {"x-prefiller-host-port": f"127.0.0.1:{chain.workers[0].port}", "content-type": "application/json"}
        raw = b'{"messages": [{"role": "user", "content": "short"}], "max_tokens": 4}'
        assert chain.ask("POST", "/v1/chat/completions", raw, headers).status == 200
        assert [generated(worker) for worker in chain.workers] == [0, 4]
