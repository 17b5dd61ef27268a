"""A gateway's end of real ext_proc calls."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio

from epp._pb.external_processor_pb2 import ProcessingResponse
from epp.extproc.transport.choice import Transport, transport_for
from epp.extproc.transport.grpcio import SERVICE
from epp.settings import Settings, TransportName
from tests.waiting import until

from .world import World

METHOD = f"/{SERVICE}/Process"


class Gateway:
    """One bidirectional call to the EPP, with the answers parsed."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.call = channel.stream_stream(METHOD)()

    async def send(self, *messages: bytes) -> None:
        for message in messages:
            await self.call.write(message)

    async def answers(self, count: int) -> list[ProcessingResponse]:
        """The next `count` answers."""
        return [ProcessingResponse.FromString(await self.call.read()) for _ in range(count)]

    async def rest(self) -> list[ProcessingResponse]:
        """All answers until the server ends the call, which it must do with OK."""
        answers = []
        while (message := await self.call.read()) is not grpc.aio.EOF:
            answers.append(ProcessingResponse.FromString(message))
        assert await self.call.code() is grpc.StatusCode.OK
        return answers

    async def ended(self) -> grpc.StatusCode:
        """The status with which the server ends the call, with no further answer."""
        assert await self.call.read() is grpc.aio.EOF
        return await self.call.code()

    async def quiet(self) -> bool:
        """Whether the server says nothing for a while."""
        read = asyncio.ensure_future(self.call.read())
        done, _ = await asyncio.wait({read}, timeout=0.1)
        if not done:
            read.cancel()
            await asyncio.gather(read, return_exceptions=True)
        return not done


@asynccontextmanager
async def served(world: World, carrier: TransportName) -> AsyncIterator[tuple[Transport, grpc.aio.Channel]]:
    """The world's servicer behind a real server, and a channel to it."""
    settings = Settings(host="127.0.0.1", grpc_port=0, transport=carrier, secure_serving=False)
    transport = transport_for(settings, world.servicer.serve)
    port = await transport.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield transport, channel
    finally:
        await transport.stop()


async def settled(world: World) -> None:
    """Wait until the server has let go of everything."""
    await until(lambda: not world.servicer.status().open, said=world.servicer.status)


async def loaded(world: World, in_flight: list[int]) -> None:
    """Wait until each endpoint has this many requests: an answer may arrive before the load has moved."""
    await until(
        lambda: world.scheduler.load.in_flight.tolist() == in_flight, said=world.scheduler.load.in_flight.tolist
    )
