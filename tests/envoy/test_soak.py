"""A short soak; `make soak` is the long one."""

import asyncio

import pytest

from epp.settings import TransportName
from tests.soak.__main__ import Plan, Report, soak


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_five_thousand_requests_with_clients_that_leave(carrier: TransportName) -> None:
    report: Report = await asyncio.to_thread(soak, Plan(requests=5000, transport=carrier))
    assert report.faults == [], report
