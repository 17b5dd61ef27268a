"""Workers that fail, stall or are new, through real Envoy: who is left out, how many at once, and who comes back."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.envoy.chain import SPOOFED, Chain, running_gateway
from tests.envoy.stub_worker import Stub, running_stubs
from tests.waiting import eventually

BODY = b'{"messages": [{"role": "user", "content": "short"}]}'
PAGE = "vllm:num_requests_waiting {queued}\nvllm:num_requests_running 1\nvllm:generation_tokens_total {tokens}\n"


def ask(chain: Chain, times: int) -> None:
    for _ in range(times):
        chain.ask("POST", "/v1/chat/completions", BODY, {**SPOOFED, "content-type": "application/json"})


def asked(stubs: Sequence[Stub]) -> list[int]:
    return [len(stub.asked) for stub in stubs]


def test_who_fails_again_and_again_is_left_out_but_never_more_than_the_share(
    tmp_path: Path, model_folder: Path
) -> None:
    settings = {"EPP_POLICY": "round-robin", "EPP_EJECT_FAILURES": "2", "EPP_EJECT_SECONDS": "60"}
    with running_stubs("good", "b1", "b2", "b3") as stubs:
        for bad in stubs[1:]:
            bad.status = 500
        with running_gateway(tmp_path, model_folder, [stub.entry() for stub in stubs], settings) as (picker, envoy):
            chain = Chain(envoy, picker, [])
            ask(chain, 12)
            out = set(chain.status()["ejection"]["failing"])
            assert len(out) == 2, "half of the pool and no more, though three fail"
            before = asked(stubs)
            ask(chain, 10)
            since = {stub.name: now - then for stub, now, then in zip(stubs, asked(stubs), before, strict=True)}
            assert all(since[name] == 0 for name in out)
            assert since["good"] == 5


def test_a_worker_that_makes_no_progress_with_work_queued_is_left_out_until_it_moves(
    tmp_path: Path, model_folder: Path
) -> None:
    settings = {"EPP_POLICY": "round-robin", "EPP_STALLED_SECONDS": "1", "EPP_METRICS_MOST_SECONDS": "0.3"}
    with running_stubs("stuck", "well") as stubs:
        stuck, well = stubs
        stuck.metrics, well.metrics = PAGE.format(queued=3, tokens=100), PAGE.format(queued=0, tokens=100)
        with running_gateway(tmp_path, model_folder, [stub.entry() for stub in stubs], settings) as (picker, envoy):
            chain = Chain(envoy, picker, [])
            eventually(lambda: chain.status()["ejection"]["stalled"] == ["stuck"])
            ask(chain, 6)
            assert asked(stubs) == [0, 6]
            stuck.metrics = PAGE.format(queued=3, tokens=101)
            eventually(lambda: chain.status()["ejection"]["stalled"] == [])


@pytest.mark.parametrize(("seconds", "waits"), [("1000", True), ("0", False)])
def test_a_new_worker_waits_for_its_share_while_it_starts(
    tmp_path: Path, model_folder: Path, seconds: str, waits: bool
) -> None:
    settings = {"EPP_SLOW_START_SECONDS": seconds, "EPP_EXPLORATION": "0", "EPP_ENDPOINTS_FILE_SECONDS": "0.1"}
    with running_stubs("a", "b", "new") as stubs:
        entries = [stub.entry() for stub in stubs]
        with running_gateway(tmp_path, model_folder, entries[:2], settings) as (picker, envoy):
            chain = Chain(envoy, picker, [])
            ask(chain, 5)
            (tmp_path / "endpoints.json").write_text(json.dumps({"endpoints": entries}))
            eventually(lambda: len(chain.status()["pool"]["endpoints"]) == 3)
            ask(chain, 20)
            assert (not stubs[2].asked) is waits
