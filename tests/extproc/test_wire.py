"""Hand-made bytes are what the generated code would make."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp._pb.external_processor_pb2 import (
    BodyMutation,
    BodyResponse,
    CommonResponse,
    ProcessingResponse,
    StreamedBodyResponse,
)
from epp.extproc.wire import MAX_PIECE, Place, streamed


def generated(place: Place, body: bytes, *, end: bool) -> bytes:
    piece = BodyResponse(
        response=CommonResponse(
            body_mutation=BodyMutation(streamed_response=StreamedBodyResponse(body=body, end_of_stream=end))
        )
    )
    name = "request_body" if place is Place.REQUEST_BODY else "response_body"
    return ProcessingResponse(**{name: piece}).SerializeToString()


@given(st.sampled_from([Place.REQUEST_BODY, Place.RESPONSE_BODY]), st.binary(max_size=300), st.booleans())
def test_a_piece_is_byte_for_byte_the_generated_form(place: Place, body: bytes, end: bool) -> None:
    assert streamed(place, body, end=end) == [generated(place, body, end=end)]


@pytest.mark.parametrize("size", [127, 128, 16_383, 16_384, MAX_PIECE, MAX_PIECE + 1, 3 * MAX_PIECE, 1_000_000])
def test_long_bodies_are_cut_without_loss(size: int) -> None:
    body = bytes(i % 251 for i in range(size))
    pieces = [body[at : at + MAX_PIECE] for at in range(0, size, MAX_PIECE)]
    expected = [generated(Place.RESPONSE_BODY, piece, end=piece is pieces[-1]) for piece in pieces]
    assert streamed(Place.RESPONSE_BODY, body, end=True) == expected
