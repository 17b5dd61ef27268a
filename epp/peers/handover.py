"""What a process that starts late gets from a warm one: how they speak. Frames are a kind and a payload.

The late one asks `hello` of many and `begin` of one, which answers `opening`, then `data` as often as it is allowed
(`more`), then `end`. Whoever cannot give answers `no`. Later versions may append to the arrays and add kinds.
"""

from typing import Annotated

import msgspec

VERSION = 1
WINDOW = 16
"""Chunks that may be under way; one is about 100 KB at most."""

HELLO, BEGIN, MORE = b"hello", b"begin", b"more"
OPENING, DATA, END, NO = b"opening", b"data", b"end", b"no"

_Number = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]


class Hello(msgspec.Struct, array_like=True, frozen=True):
    """The answer to `hello`."""

    version: int
    warm: bool
    """Whether there is something to give."""


class Learnt(msgspec.Struct, array_like=True, frozen=True):
    """What was learnt of the workers' speeds."""

    curve: tuple[_Number, _Number, _Number]
    precision: Annotated[tuple[_Number, ...], msgspec.Meta(min_length=9, max_length=9)]
    moment: tuple[_Number, _Number, _Number]
    speeds: dict[int, tuple[_Number, int]]
    """Slowness and number of observations, by `endpoint_key`."""


class Opening(msgspec.Struct, array_like=True, frozen=True):
    """Goes before the snapshot, over an encrypted line or within the pod only."""

    version: int
    secret: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
    """Of the prefix keys in the snapshot."""
    learnt: Learnt | None = None
