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
    rank: bytes = b"engine"
    """Label that names the data-parallel rank."""
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
        rank=b"dp_rank",
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


_AFTER_NAME = (b"{", b" ", b"\t")
_NO_ADAPTERS: tuple[frozenset[str], frozenset[str], int | None] = (frozenset(), frozenset(), None)
_SHIFT = 256
"""Bytes by which a family may come earlier on a page than on the one before, and still be found at once."""
_LOOK_AGAIN = 16
"""Readings after which a family that was not there is looked for again, and the cache's shape is read again,"""
_GROWN = 24
"""or when the page has grown by so many bytes: about the least that a new family takes."""


def read_page(page: bytes, engine: str) -> EngineSample:
    """The readings on one page; see `PageReader`."""
    return PageReader(engine).read(page)


class PageReader:
    """Reads the pages of one engine, remembering where the last one had what is wanted, and what it had not.

    An engine of unknown name is read as vLLM.
    """

    def __init__(self, engine: str, rank: int | None = None) -> None:
        """`rank`: of several that share the page only this one counts; None: all count together."""
        self._names = _ENGINES.get(engine, _ENGINES["vllm"])
        self._rank = b"" if rank is None else self._names.rank + b'="%d"' % rank
        self._page = b""
        self._at: dict[bytes, int] = {}
        """Where each family began."""
        self._absent: set[bytes] = set()
        self._shape: tuple[int | None, int | None] | None = None
        """Block size and number of blocks; None: to be read."""
        self._readings = 0
        self._size = 0
        """Of the page on which absent families were last looked for."""

    def read(self, page: bytes) -> EngineSample:
        """The readings on a page; queues of several ranks are summed, of several usages the highest counts.

        What is not on the page, or is no number, is None.
        """
        self._page, names = page, self._names
        self._readings += 1
        if self._readings % _LOOK_AGAIN == 0 or len(page) >= self._size + _GROWN:
            self._absent.clear()
            self._shape, self._size = None, len(page)
        if self._shape is None:
            self._shape = self._cache_shape()
        running, waiting, most = self._adapters(names.adapters)
        queued = self._total(*names.queued, sum)
        sample = EngineSample(
            queued=queued,
            running=self._total(*names.running, sum),
            kv_used=self._used(),
            progress=self._progress() if queued else None,
            block_size=self._shape[0],
            blocks=self._shape[1],
            adapters=running,
            adapters_waiting=waiting,
            adapters_most=most,
        )
        self._page = b""
        return sample

    def _begin(self, family: bytes) -> int:
        """Where the family's first line begins; -1: nowhere."""
        if family in self._absent:
            return -1
        page, near = self._page, self._at.get(family, 0) - _SHIFT
        at = _find(page, family, near) if near > 0 else -1
        # In the middle of a family is not at its begin.
        if at < 0 or page.startswith(family, page.rfind(b"\n", 0, at - 1) + 1):
            at = _find(page, family, 0)
        if at < 0:
            self._absent.add(family)
        else:
            self._at[family] = at
        return at

    def _lines(self, family: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Labels and the rest of each sample line of just this family; the format keeps a family's lines together."""
        page, length = self._page, len(family)
        at = self._begin(family)
        while at >= 0 and page.startswith(family, at):
            end = page.find(b"\n", at)
            line = page[at:] if end < 0 else page[at:end]
            after, close = line[length : length + 1], line.rfind(b"}")
            if after == b"{" and close > 0:
                yield line[length + 1 : close], line[close + 1 :]
            elif after in (b" ", b"\t"):
                yield b"", line[length:]
            at = end + 1 if end >= 0 else -1

    def _total(self, family: bytes, label: bytes, combine: Callable[[list[float]], float]) -> float | None:
        values = []
        for labels, rest in self._lines(family):
            value = _number(rest) if label in labels and self._rank in labels else None
            if value is not None:
                values.append(value)
        return combine(values) if values else None

    def _progress(self) -> float | None:
        moved = [total for family in self._names.progress if (total := self._total(family, b"", sum)) is not None]
        return sum(moved) if moved else None

    def _used(self) -> float | None:
        for family, label in self._names.kv_used:
            if (value := self._total(family, label, max)) is not None:
                return value
        return None

    def _cache_shape(self) -> tuple[int | None, int | None]:
        """Block size and number of blocks, which stay as they are while the engine runs."""
        names = self._names
        block_size, blocks = self._count(names.block_size), self._count(names.blocks)
        if names.config is not None and block_size is None:
            for labels, _ in self._lines(names.config):
                size = _label(labels, b"block_size") or _label(labels, b"page_size")
                count = _label(labels, b"num_gpu_blocks") or _label(labels, b"num_pages")
                return _integer(size), _integer(count)
        return block_size, blocks

    def _count(self, place: tuple[bytes, bytes] | None) -> int | None:
        value = self._total(*place, max) if place is not None else None
        return int(value) if value else None

    def _adapters(self, family: bytes | None) -> tuple[frozenset[str], frozenset[str], int | None]:
        """The newest line counts: its value is the time at which it was true."""
        if family is None or family in self._absent:
            return _NO_ADAPTERS
        newest, found = -1.0, b""
        for labels, rest in self._lines(family):
            at = _number(rest)
            if at is not None and at > newest:
                newest, found = at, labels
        running, waiting = _label(found, b"running_lora_adapters"), _label(found, b"waiting_lora_adapters")
        return _names(running), _names(waiting), _integer(_label(found, b"max_lora"))


def _find(page: bytes, family: bytes, start: int) -> int:
    """Where the first line of exactly this family begins, from `start` on; -1: nowhere."""
    length, begin = len(family), b"\n" + family
    if start == 0 and page.startswith(family) and page[length : length + 1] in _AFTER_NAME:
        return 0
    at = page.find(begin, start)
    while at >= 0:
        at += 1
        if page[at + length : at + length + 1] in _AFTER_NAME:
            return at
        at = page.find(begin, at)
    return -1


def _number(rest: bytes) -> float | None:
    """The value, which a time may follow; None for what is no finite number."""
    try:
        value = float(rest.split(None, 1)[0])
    except (ValueError, IndexError):
        return None
    return value if abs(value) < 1e300 else None


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
