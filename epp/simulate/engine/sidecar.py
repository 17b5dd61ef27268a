"""What stands between the Gateway and a worker in some deployments: what it demands of a pick, and what it does."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import aiohttp
import msgspec

from epp.simulate.engine.requests import RequestError

_WORKER_HEADERS = ("x-dynamo-worker-instance-id", "x-worker-instance-id")
_PREFILL_HEADERS = ("x-dynamo-prefill-instance-id", "x-prefill-instance-id")
_PREFILLER_HEADER = "x-prefiller-host-port"
_PREFILL_SECONDS = 120.0


class SidecarKind(StrEnum):
    """Whose sidecar to imitate."""

    NONE = "none"
    DYNAMO = "dynamo"
    LLM_D = "llm-d"


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarConfig:
    """What the sidecar knows."""

    kind: SidecarKind = SidecarKind.NONE
    instance_id: int | None = None
    """Dynamo: the only worker id that is known; None: any number."""
    prefill_workers: Mapping[int, str] = field(default_factory=dict)
    """Dynamo: `host:port` of each prefill worker by its id; empty: an aggregated deployment."""


class Sidecar:
    """Decides for each request whether and where its prefill runs, before the worker decodes it."""

    def __init__(self, config: SidecarConfig) -> None:
        self._config = config
        self._session: aiohttp.ClientSession | None = None

    async def admit(self, headers: Mapping[str, str], path: str, raw: bytes) -> bool:
        """Whether the prompt's KV was computed elsewhere and is here now.

        Raises RequestError with what the imitated sidecar answers to wrong or missing headers.
        """
        prefiller = None
        if self._config.kind is SidecarKind.DYNAMO:
            prefiller = self._dynamo(headers)
        elif self._config.kind is SidecarKind.LLM_D:
            prefiller = headers.get(_PREFILLER_HEADER)
        if prefiller is None:
            return False
        await self._prefill(prefiller, path, raw)
        return True

    async def stop(self) -> None:
        """Close the connections to prefill workers."""
        if self._session is not None:
            await self._session.close()

    def _dynamo(self, headers: Mapping[str, str]) -> str | None:
        """Dynamo's frontend in direct mode never falls back: the pick must name workers that it knows."""
        worker = _number(headers, _WORKER_HEADERS)
        if worker is None:
            raise RequestError("Invalid request: direct mode needs x-dynamo-worker-instance-id")
        if self._config.instance_id not in {None, worker}:
            raise RequestError(f"Invalid request: worker instance {worker} is not known")
        if not self._config.prefill_workers:
            return None
        prefill = _number(headers, _PREFILL_HEADERS)
        if prefill is None:
            raise RequestError("direct mode needs x-dynamo-prefill-instance-id in this deployment", 500)
        if prefill not in self._config.prefill_workers:
            raise RequestError(f"Invalid request: prefill instance {prefill} is not known")
        return self._config.prefill_workers[prefill]

    async def _prefill(self, prefiller: str, path: str, raw: bytes) -> None:
        """Let `prefiller` compute the prompt, as both sidecars do: one token, not streamed."""
        try:
            body = msgspec.json.decode(raw, type=dict[str, object])
        except msgspec.MsgspecError as error:
            raise RequestError(str(error)) from None
        body.pop("max_completion_tokens", None)
        body.pop("stream_options", None)
        body |= {"max_tokens": 1, "stream": False, "kv_transfer_params": {"do_remote_decode": True}}
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_PREFILL_SECONDS))
        try:
            async with self._session.post(f"http://{prefiller}{path}", data=msgspec.json.encode(body)) as response:
                if response.status != 200:
                    raise RequestError(f"prefill at {prefiller} failed: {await response.text()}", response.status)
                await response.read()
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise RequestError(f"prefill at {prefiller} failed: {error}", 502) from None


def _number(headers: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    """The first of `names` that is there, as a number."""
    value = next((headers[name] for name in names if name in headers), None)
    if value is not None and not value.isdecimal():
        raise RequestError(f"Invalid request: instance id {value!r} is not a number")
    return None if value is None else int(value)
