"""vLLM's own KV-cache manager and event publisher, driven in the order in which its scheduler drives them.

vLLM's: requests and block hashing, KVCacheManager with coordinator, pool and LRU queue, event classes, publisher.
Ours: admission of one request at a time, decode steps, preemption of the latest, one batch of events for each step.
"""

import functools
import inspect
import itertools
import logging
import os
import random
import time
import types
from pathlib import Path
from typing import Any

from tests.engines import modules

_REAL = frozenset(
    f"vllm.{name}"
    for name in [
        "envs",
        "distributed.kv_events",
        "config.kv_events",
        "lora.request",
        "utils",
        "utils.hashing",
        "utils.math_utils",
        "utils.import_utils",
        "v1.request",
        "v1.kv_cache_interface",
        "v1.kv_cache_layout",
        "v1.kv_cache_spec_registry",
        "v1.core.block_pool",
        "v1.core.kv_cache_utils",
        "v1.core.kv_cache_manager",
        "v1.core.kv_cache_coordinator",
        "v1.core.single_type_kv_cache_manager",
        "v1.core.kv_cache_metrics",
        "v1.hisparse.block_pool",
        "v1.metrics.stats",
        "v1.engine",
        "v1.structured_output.request",
        "v1.utils",
        "v1.kv_hints",
    ]
)
_ABSENT = frozenset(
    [
        "torch",
        "transformers",
        "numpy",
        "psutil",
        "regex",
        "cloudpickle",
        "cachetools",
        "setproctitle",
        "yaml",
        "pydantic",
        "uvloop",
        "requests",
        "aiohttp",
        "PIL",
        "packaging",
        "prometheus_client",
        "ray",
        "huggingface_hub",
        "triton",
        "tqdm",
        "pybase64",
        "filelock",
        "fastapi",
        "openai",
        "typing_extensions",
        "cbor2",
        "xxhash",
    ]
)
_WANTED = {
    "events": "vllm.distributed.kv_events",
    "settings": "vllm.config.kv_events",
    "utils": "vllm.v1.core.kv_cache_utils",
    "interface": "vllm.v1.kv_cache_interface",
    "request": "vllm.v1.request",
    "manager": "vllm.v1.core.kv_cache_manager",
    "lora": "vllm.lora.request",
}
_FOREVER = 1 << 20


def _logger(name: str) -> logging.Logger:
    logger = logging.getLogger(name)
    for level in ("debug", "info", "warning", "error"):
        setattr(logger, f"{level}_once", getattr(logger, level))
    return logger


def _split_zmq_path(path: str) -> tuple[str, str, str]:
    scheme, rest = path.split("://", 1)
    host, _, port = rest.rpartition(":")
    return scheme, host.strip("[]"), port


def _config(cls: Any = None, **_options: Any) -> Any:
    import dataclasses

    return dataclasses.dataclass(cls) if cls is not None else dataclasses.dataclass


_PLATFORM = types.SimpleNamespace(
    register_custom_kv_cache_specs=lambda _config: None,
    is_cuda_alike=lambda: False,
    is_cpu=lambda: True,
    device_type="cpu",
)
_OURS: dict[str, dict[str, Any]] = {
    "vllm.logger": {"init_logger": _logger},
    "vllm.config.utils": {"config": _config},
    "vllm.utils.network_utils": {
        "split_zmq_path": _split_zmq_path,
        "get_ip": lambda: "127.0.0.1",
        "is_valid_ipv6_address": lambda ip: ":" in ip,
        "get_tcp_uri": lambda ip, port: f"tcp://{ip}:{port}",
    },
    "vllm.config": {"get_current_vllm_config_or_none": lambda: None},
    "vllm.platforms": {"current_platform": _PLATFORM},
}


@functools.cache
def vllm(root: Path) -> types.SimpleNamespace:
    """vLLM's modules; one version for each process."""
    ours = modules.load(root, "vllm", real=_REAL, ours=_OURS, absent=_ABSENT, wanted=_WANTED)
    hashing = "vllm.utils.hashing" if (root / "vllm/utils/hashing.py").exists() else "vllm.utils"
    ours.hash_function = __import__(hashing, fromlist=["x"]).get_hash_fn_by_name
    return ours


@functools.cache
def _parameters(function: Any) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def _fitting(function: Any, **named: Any) -> Any:
    """Call with those arguments that this version knows."""
    return function(**{name: value for name, value in named.items() if name in _parameters(function)})


class VllmEngine:
    """One engine without a model. Without `port` nothing is published, and `step` only returns the events."""

    def __init__(
        self, root: Path, *, blocks: int, block_size: int, ports: tuple[int, int] | None = None, seed: int = 0
    ) -> None:
        self.code = vllm(root)
        self.block_size = block_size
        hash_function = self.code.hash_function("sha256")
        os.environ["PYTHONHASHSEED"] = str(seed)
        self.code.utils.init_none_hash(hash_function)
        del os.environ["PYTHONHASHSEED"]
        self._hasher = self.code.utils.get_request_block_hasher(block_size, hash_function)
        self.manager = self._manager(blocks)
        self.publisher = self._publisher(*ports) if ports else None
        self.running: dict[str, Any] = {}
        self._ids = itertools.count()
        self._loras: dict[str, Any] = {}
        self._draw = random.Random(seed)

    def _manager(self, blocks: int) -> Any:
        interface = self.code.interface
        shape = {"block_size": self.block_size, "num_kv_heads": 1, "head_size": 1, "dtype": "float16", "use_mla": False}
        group = interface.KVCacheGroupSpec(["layer"], _fitting(interface.FullAttentionSpec, **shape))
        config = interface.KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[group])
        return _fitting(
            self.code.manager.KVCacheManager,
            kv_cache_config=config,
            max_model_len=_FOREVER,
            scheduler_block_size=self.block_size,
            hash_block_size=self.block_size,
            enable_caching=True,
            enable_kv_cache_events=True,
            log_stats=False,
        )

    def _publisher(self, port: int, replay_port: int) -> Any:
        config = self.code.settings.KVEventsConfig(
            enable_kv_cache_events=True,
            publisher="zmq",
            endpoint=f"tcp://*:{port}",
            replay_endpoint=f"tcp://*:{replay_port}",
        )
        return self.code.events.EventPublisherFactory.create(config, 0)

    def admit(self, tokens: list[int], *, lora: str | None = None, salt: str | None = None) -> tuple[Any, int] | None:
        """The request and its cached tokens as vLLM reports them; None when the pool has no room."""
        request = self._request(tokens, lora, salt)
        cached = self.schedule(request)
        return None if cached is None else (request, cached)

    def schedule(self, request: Any) -> int | None:
        """Compute a new or preempted request's tokens; its cached tokens, or None without room."""
        if hasattr(self.manager, "new_step_starts"):
            self.manager.new_step_starts()
        blocks, cached = self.manager.get_computed_blocks(request)[:2]
        if self.manager.allocate_slots(request, request.num_tokens - cached, cached, blocks) is None:
            return None
        request.num_computed_tokens = request.num_tokens
        request.status = self.code.request.RequestStatus.RUNNING
        self.running[request.request_id] = request
        return int(cached)

    def decode(self, request: Any, steps: int) -> None:
        """Append random tokens; the last one has no KV yet, as in vLLM."""
        for _ in range(steps):
            if request.request_id not in self.running or not self._grow(request):
                return
            request.append_output_token_ids(self._draw.randrange(1 << 17))

    def _grow(self, request: Any) -> bool:
        missing = request.num_tokens - request.num_computed_tokens
        if not missing:
            return True
        while self.manager.allocate_slots(request, missing) is None:
            latest = next(reversed(self.running.values()))
            self.preempt(latest)
            if latest is request:
                return False
        request.num_computed_tokens += missing
        return True

    def preempt(self, request: Any) -> None:
        """Take its blocks away."""
        if self.running.pop(request.request_id, None) is not None:
            self.manager.free(request)
            request.status = self.code.request.RequestStatus.PREEMPTED
            request.num_computed_tokens = 0

    def finish(self, request: Any) -> None:
        """Its blocks stay cached until they are needed."""
        if self.running.pop(request.request_id, None) is not None:
            self.manager.free(request)

    def reset(self) -> None:
        """Empty the prefix cache."""
        for request in reversed(list(self.running.values())):
            self.preempt(request)
        assert self.manager.reset_prefix_cache()

    def step(self) -> bytes | None:
        """Publish what happened since the last step, as one batch; None when nothing did."""
        events = self.manager.take_events()
        if not events:
            return None
        batch = self.code.events.KVEventBatch(ts=time.time(), events=events)
        if self.publisher:
            self.publisher.publish(batch)
        import msgspec

        return msgspec.msgpack.encode(batch)

    def truth(self) -> dict[int, int]:
        """Copies of each cached block, by the hash that events have, read from the real pool."""
        utils = self.code.utils
        copies: dict[int, int] = {}
        for block in self.manager.block_pool.blocks:
            if block.block_hash is not None:
                name = utils.maybe_convert_block_hash(utils.get_block_hash(block.block_hash))
                copies[name] = copies.get(name, 0) + 1
        return copies

    def close(self) -> None:
        """Close the publisher's sockets."""
        if self.publisher:
            self.publisher.shutdown()

    def _request(self, tokens: list[int], lora: str | None, salt: str | None) -> Any:
        sampling = types.SimpleNamespace(
            max_tokens=_FOREVER,
            extra_args=None,
            structured_outputs=None,
            guided_decoding=None,
            prompt_logprobs=None,
            skip_reading_prefix_cache=False,
        )
        return _fitting(
            self.code.request.Request,
            request_id=f"r{next(self._ids)}",
            prompt_token_ids=list(tokens),
            sampling_params=sampling,
            pooling_params=None,
            eos_token_id=None,
            lora_request=self._lora(lora) if lora else None,
            cache_salt=salt,
            block_hasher=self._hasher,
        )

    def _lora(self, name: str) -> Any:
        if name not in self._loras:
            self._loras[name] = self.code.lora.LoRARequest(
                lora_name=name, lora_int_id=len(self._loras) + 1, lora_path=f"/adapters/{name}"
            )
        return self._loras[name]
