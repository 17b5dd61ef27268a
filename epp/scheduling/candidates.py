"""What a policy sees: the endpoints that may serve one request, as NumPy columns."""

from collections.abc import Callable

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from epp.endpoints.endpoint import Endpoint
from epp.endpoints.metrics import EngineSample

Header = Callable[[str], str]
"""The value of a request header by its lower-case name; the empty string when it is absent."""


def no_header(_name: str) -> str:
    """The headers of a request that has none."""
    return ""


SampleOf = Callable[[int], EngineSample | None]


def no_sample(_column: int) -> EngineSample | None:
    """The readings where there are none."""
    return None


class Candidates(msgspec.Struct, frozen=True, kw_only=True):
    """Position i of every array and of `endpoints` belongs to the same endpoint."""

    endpoints: tuple[Endpoint, ...]
    columns: NDArray[np.intp]
    cached_tokens: NDArray[np.int64]
    """Leading tokens of this request's prompt that the endpoint holds."""
    confidence: NDArray[np.float64]
    """How sure the index is of what the endpoint holds, 0 to 1: less after lost events, or with none at all."""
    in_flight: NDArray[np.int64]
    """Requests reserved and not yet ended."""
    prefill_tokens: NDArray[np.int64]
    """Tokens promised to the endpoint whose prefill is not yet known to be done."""
    decode_tokens: NDArray[np.int64]
    """Context tokens of requests that are decoding."""
    wait_seconds: NDArray[np.float64]
    """Predicted time until the prefill promised to the endpoint is done."""
    work_seconds: NDArray[np.float64]
    """Predicted time of this request's own prefill there."""
    queued: NDArray[np.float64]
    """Requests that wait at the engine, as it says itself; NaN where nothing fresh is known, here and below."""
    running: NDArray[np.float64]
    kv_used: NDArray[np.float64]
    """Share of the engine's KV blocks in use, 0..1."""
    prompt_tokens: int
    """Length of the prompt; an estimate from the body's size where the tokens are not known."""
    now: float
    """Seconds on the scheduler's clock."""
    picks_elsewhere: int = 0
    """Requests that other replicas have placed on the pool so far."""
    header: Header = no_header
    """Reads a header of the request."""
    sample: SampleOf = no_sample
    """The last reading of a column's engine metrics, however old."""
    load_known: bool = True
    """Whether the columns of load and of engine metrics were filled; not for a policy that looks at none of them: then
    they hold 0 and NaN."""

    def __len__(self) -> int:
        return len(self.endpoints)

    def take(self, positions: NDArray[np.intp]) -> "Candidates":
        """Only the candidates at `positions`."""
        return replace(
            self,
            endpoints=tuple(self.endpoints[i] for i in positions.tolist()),
            **{name: getattr(self, name)[positions] for name in _COLUMNS},
        )


_COLUMNS = (
    "columns",
    "cached_tokens",
    "confidence",
    "in_flight",
    "prefill_tokens",
    "decode_tokens",
    "wait_seconds",
    "work_seconds",
    "queued",
    "running",
    "kv_used",
)
