"""The few readings that matter are found on each engine's page, old names and new."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from epp.endpoints.metrics import EngineSample
from epp.endpoints.metrics_page import PageReader, read_page

VLLM = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m{}\\"x"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0 1764527200000
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 50.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.5
vllm:cache_config_info{block_size="16",hash_block_size="None",num_gpu_blocks="8192",engine="0"} 1.0
vllm:lora_requests_info{max_lora="4",running_lora_adapters="old",waiting_lora_adapters=""} 1.76e+09
vllm:lora_requests_info{max_lora="4",running_lora_adapters="sql,chat",waiting_lora_adapters="law"} 1.77e+09
"""


def test_vllm():
    assert read_page(VLLM, "vllm") == EngineSample(
        queued=2.0,
        running=7.0,
        kv_used=0.5,
        block_size=16,
        blocks=8192,
        adapters=frozenset({"sql", "chat"}),
        adapters_waiting=frozenset({"law"}),
        adapters_most=4,
    )


def test_of_ranks_that_share_a_page_one_counts():
    first, second = (PageReader("vllm", rank).read(VLLM) for rank in (0, 1))
    assert (first.queued, first.running, first.kv_used) == (2.0, 3.0, 0.25)
    assert (second.queued, second.running, second.kv_used) == (None, 4.0, 0.5)
    assert first.blocks == 8192


@pytest.mark.parametrize(
    ("engine", "page", "expected"),
    [
        ("vllm", b'vllm:gpu_cache_usage_perc{model_name="m"} 0.75', EngineSample(kv_used=0.75)),
        (
            "sglang",
            b'sglang:num_queue_reqs{tp_rank="0"} 5\nsglang:num_running_reqs 1\nsglang:token_usage 0.5\n'
            b"sglang:page_size 64\nsglang:num_pages 1000\n",
            EngineSample(queued=5, running=1, kv_used=0.5, block_size=64, blocks=1000),
        ),
        (
            "sglang",
            b'sglang:cache_config_info{page_size="1",num_pages="9"} 1\n',
            EngineSample(block_size=1, blocks=9),
        ),
        (
            "trtllm",
            b"trtllm_num_requests_waiting 2\ntrtllm_num_requests_running 3\ntrtllm_kv_cache_utilization 0.125\n"
            b"trtllm_kv_cache_tokens_per_block 32\ntrtllm_kv_cache_max_blocks 77\n",
            EngineSample(queued=2, running=3, kv_used=0.125, block_size=32, blocks=77),
        ),
        (
            "triton",
            b'nv_trt_llm_request_metrics{model="m",request_type="waiting",version="1"} 4\n'
            b'nv_trt_llm_request_metrics{model="m",request_type="scheduled",version="1"} 6\n'
            b'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="m"} 0.5\n'
            b'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="m"} 64\n'
            b'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="m"} 100\n',
            EngineSample(queued=4, running=6, kv_used=0.5, block_size=64, blocks=100),
        ),
    ],
)
def test_other_engines_and_older_names(engine, page, expected):
    assert read_page(page, engine) == expected


def test_what_is_no_number_is_not_known():
    page = b"vllm:num_requests_waiting NaN\nvllm:num_requests_running lots\nvllm:kv_cache_usage_perc{ 1\n"
    assert read_page(page, "vllm") == EngineSample()
    assert read_page(b"<html>404</html>", "of-tomorrow") == EngineSample()


@given(st.binary(max_size=400), st.sampled_from(["vllm", "sglang", "trtllm", "triton"]), st.integers(0, 900))
def test_no_page_breaks_the_reader(noise, engine, cut):
    read_page(noise, engine)
    read_page(VLLM[:cut] + noise + VLLM[cut:], "vllm")


@given(st.floats(0, 1e6), st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_what_the_prometheus_client_writes_is_read(value, model):
    registry = CollectorRegistry()
    Gauge("vllm:num_requests_waiting", "h", ["model_name"], registry=registry).labels(model).set(value)
    assert read_page(generate_latest(registry), "vllm").queued == value


FAMILIES = {
    "vllm:num_requests_running": ["vllm:num_requests_running 3", 'vllm:num_requests_running{engine="1"} 4'],
    "vllm:num_requests_waiting": ['vllm:num_requests_waiting{engine="0"} 2'],
    "vllm:num_requests_waiting_by_reason": ['vllm:num_requests_waiting_by_reason{reason="capacity"} 50'],
    "vllm:kv_cache_usage_perc": ["vllm:kv_cache_usage_perc 0.25"],
    "vllm:prompt_tokens_total": [f'vllm:prompt_tokens_total{{engine="{rank}"}} 10' for rank in range(40)],
}


@st.composite
def pages(draw: st.DrawFn) -> bytes:
    """The families in some order, each after up to 1,000 bytes of others."""
    lines: list[str] = []
    for family in draw(st.permutations(list(FAMILIES))):
        lines += ["x" * 99] * draw(st.integers(0, 10))
        lines += FAMILIES[family]
    return "\n".join(lines).encode()


@given(st.lists(pages(), min_size=1, max_size=6))
def test_where_families_were_never_changes_what_is_read(found):
    reader = PageReader("vllm")
    for page in found:
        assert reader.read(page) == read_page(page, "vllm")


def test_a_family_that_appears_is_seen_at_once_or_within_a_few_readings():
    adapters = b'vllm:lora_requests_info{running_lora_adapters="sql"} 1\n'
    reader, without = PageReader("vllm"), VLLM[: VLLM.index(b"vllm:lora")]
    assert not reader.read(without).adapters
    assert reader.read(without + adapters).adapters == {"sql"}, "the page has grown"
    reader = PageReader("vllm")
    reader.read(without + b"x" * 200)
    assert {"sql"} in [reader.read(without + adapters).adapters for _ in range(16)]
