"""Version 2 of what replicas tell each other, as it was: kept to be met in rolling updates, never changed.

A reader takes what it knows from the front of each array and ignores the rest; what an older writer did not send has
a default. So two versions that meet in a rolling update understand each other. Nothing here is a point in time:
clocks of different machines are never compared.
"""

from typing import Annotated

import msgspec
import xxhash

from epp.endpoints.endpoint import Endpoint

VERSION = 2
"""Of the messages that we write; it goes up with each field that is appended."""

MOST_ROWS = 4096
"""Reservations in one message."""
EVERY_ID = 2**63 - 1

_Id = Annotated[int, msgspec.Meta(ge=0)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
_Span = Annotated[int, msgspec.Meta(ge=0, le=EVERY_ID)]


class WireError(Exception):
    """Bytes that are no message of a peer."""


class Row(msgspec.Struct, array_like=True, frozen=True):
    """The state of one reservation as its owner sees it now: a later row of the same id replaces an earlier one."""

    id: _Span
    """From 1, rising in the order in which the owner made them."""
    endpoint: _Id
    """`endpoint_key` of the endpoint's incarnation."""
    prefill_tokens: _Count
    context_tokens: _Count
    prefill_micros: _Count
    """Predicted time of the prefill."""
    decode_tokens: _Count
    """What counts as decode work now."""
    prefilled: bool
    shown: bool
    """Whether the owner will see the first token."""
    prefill: _Span = 0
    """Id of the reservation of whoever prefills in place of the endpoint; 0: the endpoint itself."""


class Heard(msgspec.Struct, array_like=True, frozen=True):
    """How far the sender of a beat has heard one of its peers; with it that peer can tell its lag by its own clock."""

    peer: _Id
    beat: _Id
    """Number of the last beat that was heard."""
    held_micros: _Count
    """Time since then."""


class Beat(msgspec.Struct, array_like=True, frozen=True):
    """Sent a few times a second: that the sender lives, and totals that show whether anything was lost."""

    number: _Id
    name: Annotated[str, msgspec.Meta(max_length=256)]
    """Of the process, for people: host name and index."""
    epp: Annotated[str, msgspec.Meta(max_length=64)]
    """Version of the program."""
    live: _Count
    """Reservations that the sender holds, all rows up to this message taken in."""
    ids: _Id
    """Sum of their ids modulo 2^63."""
    heard: Annotated[tuple[Heard, ...], msgspec.Meta(max_length=1024)] = ()
    leaving: bool = False
    """The sender stops: it has no reservations any more and will say nothing further."""


class Message(msgspec.Struct, array_like=True, frozen=True):
    """One message to all peers; `number` rises by one with each, so that whoever missed some knows it."""

    version: Annotated[int, msgspec.Meta(ge=1, le=2**31)]
    peer: _Id
    """The sending process: a random number drawn at its start."""
    number: _Id
    rows: Annotated[tuple[Row, ...], msgspec.Meta(max_length=MOST_ROWS)] = ()
    gone: Annotated[tuple[_Span, ...], msgspec.Meta(max_length=MOST_ROWS)] = ()
    """Ids of reservations that ended."""
    span: tuple[_Span, _Span] | None = None
    """(low, high): of the ids above `low` up to `high`, those in `rows` are all that live."""
    beat: Beat | None = None
    asks: Annotated[tuple[_Id, ...], msgspec.Meta(max_length=1024)] = ()
    """Peers whose whole state the sender needs, as it missed a part."""
    picks: _Count = 0
    """Requests that the sender has placed since its start; version 1 does not say."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """The bytes of one message."""
    return _encoder.encode(message)


def decode(data: bytes) -> Message:
    """The message in `data`. Raises WireError."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(str(error)) from None


def endpoint_key(endpoint: Endpoint) -> int:
    """A number that names an incarnation of an endpoint, the same in every replica."""
    name, uid, generation, place = endpoint.incarnation
    return xxhash.xxh3_64_intdigest(f"{name}\0{uid}\0{generation}\0{place}".encode())
