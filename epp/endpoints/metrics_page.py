"""Reads the few lines that matter from an engine's metrics page, without parsing the rest.

Names and labels: vLLM `vllm:*` (`gpu_cache_usage_perc` up to 0.11), SGLang `sglang:*`, TensorRT-LLM `trtllm_*`, Triton
`nv_trt_llm_*`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from epp.endpoints.metrics import EngineSample


@dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    """Where one engine keeps what we want: family name, and the label that must be there."""

    queued: tuple[bytes, bytes]
    running: tuple[bytes, bytes]
    kv_used: tuple[tuple[bytes, bytes], ...]
    block_size: tuple[bytes, bytes] | None = None
    blocks: tuple[bytes, bytes] | None = None
    config: bytes | None = None
    """Family whose labels hold the cache's shape."""
    adapters: bytes | None = None
    progress: tuple[bytes, ...] = ()


_ENGINES = {
    "vllm": _Names(
        queued=(b"vllm:num_requests_waiting", b""),
        running=(b"vllm:num_requests_running", b""),
        kv_used=((b"vllm:kv_cache_usage_perc", b""), (b"vllm:gpu_cache_usage_perc", b"")),
        config=b"vllm:cache_config_info",
        adapters=b"vllm:lora_requests_info",
        progress=(b"vllm:prompt_tokens_total", b"vllm:generation_tokens_total"),
    ),
    "sglang": _Names(
        queued=(b"sglang:num_queue_reqs", b""),
        running=(b"sglang:num_running_reqs", b""),
        kv_used=((b"sglang:token_usage", b""),),
        block_size=(b"sglang:page_size", b""),
        blocks=(b"sglang:num_pages", b""),
        config=b"sglang:cache_config_info",
        progress=(b"sglang:prompt_tokens_total", b"sglang:generation_tokens_total"),
    ),
    "trtllm": _Names(
        queued=(b"trtllm_num_requests_waiting", b""),
        running=(b"trtllm_num_requests_running", b""),
        kv_used=((b"trtllm_kv_cache_utilization", b""),),
        block_size=(b"trtllm_kv_cache_tokens_per_block", b""),
        blocks=(b"trtllm_kv_cache_max_blocks", b""),
    ),
    "triton": _Names(
        queued=(b"nv_trt_llm_request_metrics", b'request_type="waiting"'),
        running=(b"nv_trt_llm_request_metrics", b'request_type="scheduled"'),
        kv_used=((b"nv_trt_llm_kv_cache_block_metrics", b'kv_cache_block_type="fraction"'),),
        block_size=(b"nv_trt_llm_kv_cache_block_metrics", b'kv_cache_block_type="tokens_per"'),
        blocks=(b"nv_trt_llm_kv_cache_block_metrics", b'kv_cache_block_type="max"'),
    ),
}
ENGINES = frozenset(_ENGINES)
_PATHS = {"trtllm": "/prometheus/metrics"}


def metrics_path(engine: str) -> str:
    """Where the engine serves its page; TensorRT-LLM's `/metrics` is something else."""
    return _PATHS.get(engine, "/metrics")


def read_page(page: bytes, engine: str) -> EngineSample:
    """The readings on a page; queues of several ranks are summed, of several usages the highest counts.

    An engine of unknown name is read as vLLM. What is not on the page, or is no number, is None.
    """
    names = _ENGINES.get(engine, _ENGINES["vllm"])
    block_size, blocks = _size(page, names.block_size), _size(page, names.blocks)
    if names.config is not None and block_size is None:
        block_size, blocks = _cache_shape(page, names.config)
    running, waiting, most = _adapters(page, names.adapters)
    moved = [total for family in names.progress if (total := _total(page, family, b"", sum)) is not None]
    used = (_total(page, *place, max) for place in names.kv_used)
    return EngineSample(
        queued=_total(page, *names.queued, sum),
        running=_total(page, *names.running, sum),
        kv_used=next((value for value in used if value is not None), None),
        progress=sum(moved) if moved else None,
        block_size=block_size,
        blocks=blocks,
        adapters=running,
        adapters_waiting=waiting,
        adapters_most=most,
    )


def _lines(page: bytes, family: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Labels and the rest of each sample line of exactly this family; the format keeps a family's lines together."""
    begin, length = b"\n" + family, len(family)
    at = 0 if page.startswith(family) else page.find(begin) + 1
    found = at > 0 or page.startswith(family)
    exact = False
    while found:
        end = page.find(b"\n", at)
        line = page[at:] if end < 0 else page[at:end]
        after, close = line[length : length + 1], line.rfind(b"}")
        if after == b"{" and close > 0:
            exact = True
            yield line[length + 1 : close], line[close + 1 :]
        elif after in (b" ", b"\t"):
            exact = True
            yield b"", line[length:]
        at = end + 1
        found = end >= 0 and page.startswith(family, at)
        if end >= 0 and not found and not exact:
            at = page.find(begin, end) + 1
            found = at > 0


def _total(page: bytes, family: bytes, label: bytes, combine: Callable[[list[float]], float]) -> float | None:
    values = []
    for labels, rest in _lines(page, family):
        value = _number(rest) if label in labels else None
        if value is not None:
            values.append(value)
    return combine(values) if values else None


def _number(rest: bytes) -> float | None:
    """The value, which a time may follow; None for what is no finite number."""
    try:
        value = float(rest.split(None, 1)[0])
    except (ValueError, IndexError):
        return None
    return value if abs(value) < 1e300 else None


def _size(page: bytes, place: tuple[bytes, bytes] | None) -> int | None:
    value = _total(page, *place, max) if place is not None else None
    return int(value) if value else None


def _cache_shape(page: bytes, family: bytes) -> tuple[int | None, int | None]:
    for labels, _ in _lines(page, family):
        size = _label(labels, b"block_size") or _label(labels, b"page_size")
        count = _label(labels, b"num_gpu_blocks") or _label(labels, b"num_pages")
        return _integer(size), _integer(count)
    return None, None


def _adapters(page: bytes, family: bytes | None) -> tuple[frozenset[str], frozenset[str], int | None]:
    """The newest line counts: its value is the time at which it was true."""
    newest, found = -1.0, b""
    for labels, rest in _lines(page, family) if family is not None else ():
        at = _number(rest)
        if at is not None and at > newest:
            newest, found = at, labels
    running, waiting = _label(found, b"running_lora_adapters"), _label(found, b"waiting_lora_adapters")
    return _names(running), _names(waiting), _integer(_label(found, b"max_lora"))


def _label(labels: bytes, name: bytes) -> bytes:
    """The value of one label; empty when it is absent."""
    for before in (b"", b","):
        start = labels.find(before + name + b'="')
        if start == 0 or (before and start > 0):
            start += len(before) + len(name) + 2
            return labels[start : labels.find(b'"', start)]
    return b""


def _integer(text: bytes) -> int | None:
    return int(text) if text.isdigit() else None


def _names(text: bytes) -> frozenset[str]:
    return frozenset(name.strip() for name in text.decode(errors="replace").split(",") if name.strip())
