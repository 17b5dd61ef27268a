"""A real server for each test."""

from collections.abc import AsyncIterator

import grpc.aio
import pytest

from epp.settings import TransportName
from tests.extproc.grpc_gateway import served
from tests.extproc.world import World


@pytest.fixture
async def world() -> World:
    return World()


@pytest.fixture
async def channel(world: World, carrier: TransportName) -> AsyncIterator[grpc.aio.Channel]:
    async with served(world, carrier) as (_, channel):
        yield channel
