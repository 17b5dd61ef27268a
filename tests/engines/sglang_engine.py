"""SGLang's own radix cache and event recorder without torch.

SGLang's: RadixCache with its eviction, event recorder and event classes. Ours: a counter for the memory pool, lists
in place of tensors, and page hashing in Python in place of a C++ extension (SHA-256 over the previous digest and the
page's tokens, 32 bits little-endian each).
"""

import functools
import hashlib
import struct
import time
import types
from array import array
from pathlib import Path
from typing import Any

import msgspec

from tests.engines import modules

_P = "sglang.srt."
_REAL = frozenset(
    _P + name
    for name in [
        "mem_cache.radix_cache",
        "mem_cache.events",
        "mem_cache.utils",
        "mem_cache.evict_policy",
        "mem_cache.base_prefix_cache",
        "mem_cache.cache_init_params",
        "disaggregation.kv_events",
    ]
)


class _Tensor(list[int]):
    def __getitem__(self, key: Any) -> Any:
        value = super().__getitem__(key)
        return _Tensor(value) if isinstance(key, slice) else value

    def clone(self) -> "_Tensor":
        return _Tensor(self)


def _page_hashes(key: Any, prior: bytes | None = None, page_size: int | None = None) -> Any:
    tokens, count = key.token_ids, len(key)
    step = page_size or max(count, 1)
    hashes = []
    for start in range(0, count, step):
        page = tokens[start : min(start + step, count)]
        prior = hashlib.sha256((prior or b"") + struct.pack(f"<{len(page)}I", *page)).digest()
        hashes.append(prior.hex())
    return hashes if page_size else hashes[0]


_OURS: dict[str, dict[str, Any]] = {
    "torch": {
        "empty": lambda *_args, **_named: _Tensor(),
        "tensor": lambda values, **_named: _Tensor(values),
        "cat": lambda parts: _Tensor(value for part in parts for value in part),
        "device": type("device", (str,), {}),
        "int64": "int64",
        "Tensor": _Tensor,
    },
    _P + "mem_cache.cpp_utils.native_hash": {"get_native_hash": _page_hashes},
    _P + "utils.common": {"ceil_align": lambda value, unit: -(-value // unit) * unit},
    _P + "runtime_context": {
        "get_parallel": lambda: types.SimpleNamespace(pp_rank=0, attn_tp_rank=0, attn_cp_rank=0),
        "get_observability": lambda: None,
    },
    _P + "utils.network": {"NetworkAddress": object},
}
_ABSENT = frozenset(
    [
        "torch",
        "transformers",
        "psutil",
        "regex",
        "cloudpickle",
        "setproctitle",
        "uvloop",
        "requests",
        "aiohttp",
        "PIL",
        "packaging",
        "huggingface_hub",
        "triton",
        "tqdm",
        "pybase64",
        "filelock",
        "fastapi",
        "openai",
        "typing_extensions",
    ]
)


@functools.cache
def sglang(root: Path) -> types.SimpleNamespace:
    """SGLang's modules; one version for each process."""
    wanted = {
        "radix": _P + "mem_cache.radix_cache",
        "base": _P + "mem_cache.base_prefix_cache",
        "wire": _P + "disaggregation.kv_events",
        "recorder": _P + "mem_cache.events",
    }
    return modules.load(root, "sglang", real=_REAL, ours=_OURS, absent=_ABSENT, wanted=wanted)


class SglangEngine:
    """One radix cache of `slots` tokens in pages of `page` tokens."""

    def __init__(self, root: Path, *, slots: int, page: int, ports: tuple[int, int] | None = None) -> None:
        """Without `ports` nothing is published, and `step` only returns the events."""
        self.code = sglang(root)
        self._publisher = None
        if ports is not None:
            live, replay = (f"tcp://*:{port}" for port in ports)
            self._publisher = self.code.wire.ZmqEventPublisher(attn_dp_rank=0, endpoint=live, replay_endpoint=replay)
        self.page = page
        self._free = slots
        self._names = self.code.recorder.KvEventLoraNames()
        allocator = types.SimpleNamespace(device="cpu", free_segment=self._freed)
        self.tree = self.code.radix.RadixCache.create_simulated(
            page_size=page, enable_kv_cache_events=True, kv_event_lora_names=self._names, mock_allocator=allocator
        )

    def _freed(self, segment: Any, start_pos: int = 0) -> None:
        self._free += len(segment)

    def admit(self, tokens: list[int], *, lora: str | None = None, salt: str | None = None) -> tuple[Any, int] | None:
        """A handle and the cached tokens as SGLang counts them; None without room."""
        base, key = self.code.base, self._key(tokens, lora, salt)
        match = self.tree.match_prefix(base.MatchPrefixParams(key=key[: len(tokens) - 1]))
        self.tree.inc_lock_ref(match.last_device_node)
        cached = match.device_prefix_len
        need = len(tokens) - cached
        if need > self._free:
            self.tree.evict(base.EvictParams(num_tokens=need - self._free))
        if need > self._free:
            self.tree.dec_lock_ref(match.last_device_node)
            return None
        self._free -= need
        inserted = self.tree.insert(base.InsertParams(key=key, value=_Tensor(range(len(tokens)))))
        self._free += max(0, inserted.prefix_len - cached)
        self.tree.dec_lock_ref(match.last_device_node)
        self.tree.inc_lock_ref(inserted.last_device_node)
        return (inserted.last_device_node, len(tokens) % self.page), cached

    def finish(self, handle: Any) -> None:
        """Its pages stay cached until they are needed."""
        self.tree.dec_lock_ref(handle[0])
        self._free += handle[1]

    def reset(self) -> None:
        """Empty the cache; no request may run."""
        self._free += self.tree.total_size()
        self.tree.reset()

    def step(self) -> bytes | None:
        """What happened since the last step, as one encoded batch."""
        events = self.tree.kv_events.take()
        if not events:
            return None
        batch = self.code.wire.KVEventBatch(ts=time.time(), events=events)
        if self._publisher is not None:
            self._publisher.publish(batch)
        return msgspec.msgpack.encode(batch)

    def close(self) -> None:
        """Close the publisher's sockets."""
        if self._publisher is not None:
            self._publisher.shutdown()

    def truth(self) -> dict[int, int]:
        """Pages of the real tree under each event hash."""
        copies: dict[int, int] = {}
        recorder, nodes = self.tree.kv_events, list(self.tree.root_node.children.values())
        while nodes:
            node = nodes.pop()
            nodes += node.children.values()
            seed = recorder._namespace_seed(node)
            for value in recorder._node_event_hash_values(node):
                signed = self.code.wire.namespaced_block_hash(
                    self.code.recorder.hash_str_to_int64(value), namespace_seed=seed
                )
                copies[signed & 0xFFFFFFFFFFFFFFFF] = copies.get(signed & 0xFFFFFFFFFFFFFFFF, 0) + 1
        return copies

    def _key(self, tokens: list[int], lora: str | None, salt: str | None) -> Any:
        extra = None
        if lora:
            extra = hashlib.md5(lora.encode(), usedforsecurity=False).hexdigest()
            self._names.register(types.SimpleNamespace(extra_key=extra, lora_id=extra), lora)
        return self.code.radix.RadixKey(array("q", tokens), extra, cache_salt=salt)
