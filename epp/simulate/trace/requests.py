"""Recorded requests: when each came, how long it was, which blocks it shares with others."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

BLOCK_TOKENS = 512
"""Prompt tokens that one id of a trace stands for (Mooncake's format)."""


class TraceError(ValueError):
    """The trace cannot be read; the text names the line and the field."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One line of a trace."""

    arrival: float
    """Seconds from the start."""
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    """One id for each started block of the input; equal ids mean an equal prefix up to there."""

    def tokens(self) -> NDArray[np.uint32]:
        """A prompt that shares prefixes as the trace says: every token of a block is the block's id."""
        return np.repeat(np.array(self.blocks, dtype=np.uint32), BLOCK_TOKENS)[: self.input_tokens]


class _Line(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


def read_trace(path: Path, *, speed: float = 1.0) -> list[TraceRequest]:
    """The requests of a Mooncake trace (JSON lines), in order of arrival; at `speed` 2 they come twice as fast.

    Raises TraceError for a file that is missing or a line that does not fit.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from None
    decoder = msgspec.json.Decoder(_Line)
    requests = [_request(path, number, line, decoder, speed) for number, line in enumerate(lines, 1) if line.strip()]
    if not requests:
        raise TraceError(f"{path}: holds no request")
    return sorted(requests, key=lambda request: request.arrival)


def _request(path: Path, number: int, line: bytes, decoder: msgspec.json.Decoder[_Line], speed: float) -> TraceRequest:
    try:
        read = decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}, line {number}: {error}") from None
    expected = -(-read.input_length // BLOCK_TOKENS)
    if len(read.hash_ids) != expected:
        raise TraceError(
            f"{path}, line {number}: hash_ids holds {len(read.hash_ids)} ids, expected {expected}: "
            f"one for each {BLOCK_TOKENS} tokens of input_length"
        )
    return TraceRequest(read.timestamp / 1000.0 / speed, read.input_length, read.output_length, read.hash_ids)


def spread_out(trace: Sequence[TraceRequest], seconds: float, seed: int) -> list[TraceRequest]:
    """The trace with each request up to `seconds` later, by chance: traces record arrivals in steps."""
    draw = random.Random(seed)  # noqa: S311 - a simulation
    later = (replace(request, arrival=request.arrival + draw.random() * seconds) for request in trace)
    return sorted(later, key=lambda request: request.arrival)


def in_bursts(trace: Sequence[TraceRequest], copies: int, *, every: int = 50) -> list[TraceRequest]:
    """The trace with every so-manyth request coming `copies` times at once."""
    return [request for i, request in enumerate(trace) for _ in range(1 if i % every else copies)]
