"""Addresses as users and pickers write them."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.conformance.address import AddressError, endpoint, join, target

PORTS = st.integers(1, 65535)


@given(st.ip_addresses(), PORTS)
def test_an_endpoint_is_its_own_one_form(ip: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> None:
    text = join(str(ip), port)
    assert endpoint(text) == text
    assert target(text) == (str(ip), port)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "10.0.0.1",
        "10.0.0.1:",
        "10.0.0.1:0",
        "10.0.0.1:65536",
        "10.0.0.1:٣",
        "10.0.0.1:+1",
        "w0:80",
        "fd00::1:80",
        "[fd00::1]",
        "[10.0.0.1]:80",
        "10.0.0.1:80,10.0.0.2:80",
        " 10.0.0.1:80",
        "10.0.0.1: 80",
    ],
)
def test_what_is_no_endpoint_is_refused(text: str) -> None:
    with pytest.raises(AddressError, match="expected"):
        endpoint(text)


@given(st.text())
def test_any_text_is_an_endpoint_or_refused(text: str) -> None:
    try:
        assert endpoint(endpoint(text)) == endpoint(text)
    except AddressError:
        pass
