"""What settings, headers and media make of a pick, seen by the workers behind a real Envoy."""

import json
from collections.abc import Mapping
from pathlib import Path
from threading import Thread

import pytest

from tests.envoy.chain import Chain, running_chain, running_gateway
from tests.envoy.stub_worker import running_stubs
from tests.waiting import eventually

LONG = "the file has one test that fails " * 40


@pytest.mark.parametrize(
    ("weights", "stays"),
    [({}, True), ({"DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT": "0"}, False)],
)
def test_dynamos_weights_decide_whether_cached_blocks_count(
    tmp_path: Path, model_folder: Path, weights: Mapping[str, str], stays: bool
) -> None:
    settings = {"EPP_POLICY": "dynamo-cost", **weights}
    with running_chain(tmp_path, model_folder, settings=settings) as chain:
        for _ in range(14):
            assert chain.chat(LONG).status == 200
            chain.settles()
        chosen = {decision["chosen"] for decision in chain.decisions()}
        assert (len(chosen) == 1) is stays


def test_who_can_wait_leaves_the_idle_worker_to_who_cannot(tmp_path: Path, model_folder: Path) -> None:
    with running_stubs("a", "b") as stubs:
        entries = [stub.entry() for stub in stubs]
        with running_gateway(tmp_path, model_folder, entries, {"EPP_SCORERS": "slo:1"}) as (picker, envoy):
            chain = Chain(envoy, picker, [])
            for stub in stubs:
                stub.held = True
            # A prompt of about 100 s of prefill, as a picker believes that has seen none.
            busy = Thread(target=ask, args=(chain, "x " * 2_000_000, "600000"))
            busy.start()
            eventually(lambda: any(stub.asked for stub in stubs))
            held, idle = sorted(stubs, key=lambda stub: -len(stub.asked))
            held.held = idle.held = False
            ask(chain, "short", "500")
            assert (len(held.asked), len(idle.asked)) == (1, 1)
            ask(chain, "short", "600000")
            assert (len(held.asked), len(idle.asked)) == (2, 1)
            held.free.set()
            busy.join()
            chain.settles()


@pytest.mark.parametrize("image", ["https://example.com/cat.png", "data:image/png;base64," + "A" * 300_000])
def test_a_worker_is_told_one_encoder_for_each_image(tmp_path: Path, model_folder: Path, image: str) -> None:
    with running_stubs("worker", "e1", "e2") as (worker, *encoders):
        entries = [worker.entry(), *(encoder.entry(role="encode") for encoder in encoders)]
        with running_gateway(tmp_path, model_folder, entries, {}) as (picker, envoy):
            chain = Chain(envoy, picker, [])
            two = [{"type": "text", "text": "two"}, *[{"type": "image_url", "image_url": {"url": image}}] * 2]

            def told() -> bool:
                """A large body is read in a process beside, which has a bound in time and is new here."""
                ask(chain, two)
                return "x-encoder-hosts-ports" in worker.asked[-1]

            eventually(told)
            ask(chain, "none")
            with_images, without = worker.asked[-2:]
            places = {f"127.0.0.1:{encoder.port}" for encoder in encoders}
            assert set(with_images["x-encoder-hosts-ports"].split(",")) == places
            assert "x-encoder-hosts-ports" not in without, "a client cannot name one either"
            assert not any(encoder.asked for encoder in encoders), "the picker sends requests to those that decode"


def ask(chain: Chain, content: object, slo_ms: str = "") -> None:
    headers = {"content-type": "application/json", "x-encoder-hosts-ports": "127.0.0.1:1"}
    headers |= {"x-slo-ttft-ms": slo_ms} if slo_ms else {}
    body = json.dumps({"messages": [{"role": "user", "content": content}]}).encode()
    assert chain.ask("POST", "/v1/chat/completions", body, headers).status == 200
