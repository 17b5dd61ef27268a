"""What a policy sees: the endpoints that may serve one request, as NumPy columns."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from epp.endpoints.endpoint import Endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Position i of every field belongs to the same endpoint."""

    endpoints: tuple[Endpoint, ...]
    columns: NDArray[np.intp]
    cached_tokens: NDArray[np.int64]
    """Leading tokens of this request's prompt that the endpoint holds."""
    in_flight: NDArray[np.int64]
    """Requests reserved and not yet ended."""
    prefill_tokens: NDArray[np.float64]
    """Tokens promised to the endpoint whose prefill is not yet known to be done."""
    decode_tokens: NDArray[np.float64]
    """Context tokens of requests that are decoding."""

    def __len__(self) -> int:
        return len(self.endpoints)
