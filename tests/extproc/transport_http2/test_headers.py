"""Header blocks: what a valid request is, and what decoding may cost."""

import pytest
from hpack import Decoder, Encoder
from hypothesis import given
from hypothesis import strategies as st

from epp.extproc.transport.http2.errors import ErrorCode, H2ConnectionError, H2StreamError
from epp.extproc.transport.http2.headers import HeaderDecoder, literal, request_head

from .peer import REQUEST

VALID = [(name.encode(), value.encode()) for name, value in REQUEST]


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=300), st.binary(max_size=300)), max_size=5))
def test_literals_are_read_by_any_decoder(fields):
    block = b"".join(literal(name, value) for name, value in fields)
    assert list(Decoder().decode(block, raw=True)) == fields


def test_the_same_block_means_the_same_while_the_table_stays():
    encoder, decoder = Encoder(), HeaderDecoder(10_000)
    first, second, third = (encoder.encode(list(REQUEST)) for _ in range(3))
    assert second == third != first
    heads = [decoder.request(block) for block in (first, second, third)]
    assert heads[0] == heads[1]
    assert heads[1] is heads[2]


def test_a_table_of_another_size_forgets_what_was_remembered():
    encoder, decoder = Encoder(), HeaderDecoder(10_000)
    decoder.request(encoder.encode(list(REQUEST)))
    block = encoder.encode(list(REQUEST))
    decoder.request(block)
    decoder.skip(b"\x20")
    with pytest.raises(H2ConnectionError) as error:
        decoder.request(block)
    assert error.value.code is ErrorCode.COMPRESSION_ERROR


@given(st.lists(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=3), min_size=1, max_size=30))
def test_remembering_changes_nothing(requests):
    encoder, decoder, plain = Encoder(), HeaderDecoder(10_000), Decoder()
    for values in requests:
        block = encoder.encode([*REQUEST, *((f"x-{value}", value * 3) for value in values)])
        expected = {name: value for name, value in plain.decode(block, raw=True) if name.startswith(b"x-")}
        assert {
            name: value.split(b",")[0] for name, value in decoder.request(block).fields.items() if name in expected
        } == expected


@pytest.mark.parametrize(
    "fields",
    [
        VALID[1:],
        [field for field in VALID if field[0] != b":path"],
        [*VALID[:2], (b":path", b""), *VALID[3:]],
        [*VALID, (b":path", b"/late")],
        [VALID[0], *VALID],
        [(b":status", b"200"), *VALID],
        [*VALID, (b"Upper", b"x")],
        [*VALID, (b"", b"x")],
        [*VALID, (b"x", b"a\r\nb")],
        [*VALID, (b"x", b"a\0")],
        [*VALID, (b"x", b" a")],
        [*VALID, (b"connection", b"close")],
        [*VALID, (b"transfer-encoding", b"chunked")],
        [*VALID, (b"te", b"gzip")],
        [*VALID, (b"content-length", b"-1")],
    ],
)
def test_a_malformed_request_ends_its_stream(fields):
    with pytest.raises(H2StreamError) as error:
        request_head(fields)
    assert error.value.code is ErrorCode.PROTOCOL_ERROR


def test_binary_metadata_and_repeated_fields_are_kept():
    head = request_head([*VALID, (b"trace-bin", b"AAECAw"), (b"trace-bin", b"BAUG"), (b"x", b"")])
    assert head.fields[b"trace-bin"] == b"AAECAw,BAUG"
    assert (head.method, head.path, head.content_length) == (b"POST", b"/x", None)


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x00\x7f\x00x",
        b"\x00\x81\xff\x00",
        b"\x3f\xff\xff\x7f",
        b"\x82\x20",
        b"\xbe",
    ],
)
def test_what_is_no_hpack_ends_the_connection(block):
    with pytest.raises(H2ConnectionError) as error:
        HeaderDecoder(10_000).request(block)
    assert error.value.code is ErrorCode.COMPRESSION_ERROR


def test_a_list_above_the_limit_ends_its_stream_and_keeps_the_table():
    encoder, decoder = Encoder(), HeaderDecoder(2000)
    with pytest.raises(H2StreamError) as error:
        decoder.request(encoder.encode([*REQUEST, ("big", "x" * 2000)]))
    assert error.value.code is ErrorCode.ENHANCE_YOUR_CALM
    assert decoder.request(encoder.encode(list(REQUEST))).path == b"/x"


def test_a_bomb_ends_the_connection():
    decoder = HeaderDecoder(2000)
    bomb = literal(b"a", b"x" * 1500)
    with pytest.raises(H2ConnectionError) as error:
        decoder.skip(b"\x40" + bomb[1:] + b"\xbe" * 1000)
    assert error.value.code is ErrorCode.ENHANCE_YOUR_CALM
