"""Two data-parallel ranks behind one port, through real Envoy: the worker is told which one, and only by us."""

from pathlib import Path

from tests.envoy.chain import Chain, running_gateway
from tests.envoy.stub_worker import running_stubs


def test_the_worker_is_told_the_rank_and_a_client_cannot_name_one(tmp_path: Path, model_folder: Path) -> None:
    settings = {"EPP_POLICY": "round-robin", "EPP_ENGINE_METRICS": "false"}
    with running_stubs("w") as (worker,):
        entry = worker.entry(event_ranks=2, rank_by_header=True)
        with running_gateway(tmp_path, model_folder, [entry], settings) as (picker, envoy):
            chain = Chain(envoy, picker, [])
            body = b'{"messages": [{"role": "user", "content": "short"}]}'
            spoofed = {"x-data-parallel-rank": "7", "content-type": "application/json"}
            for _ in range(4):
                assert chain.ask("POST", "/v1/chat/completions", body, spoofed).status == 200
            assert [asked["x-data-parallel-rank"] for asked in worker.asked] == ["0", "1", "0", "1"]
            chain.settles()
