"""One ext_proc RPC to the target. Nothing about it is unbounded: neither time, nor answers, nor bytes."""

import asyncio
from collections import deque
from dataclasses import dataclass

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from epp._pb.external_processor_pb2 import ProcessingRequest, ProcessingResponse

PROCESS = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"

Call = grpc.aio.StreamStreamCall[bytes, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a target may take from the kit."""

    seconds: float = 5.0
    """Wait for one answer, and for one message to be taken."""
    check_seconds: float = 60.0
    """Time of one check in all."""
    answers: int = 5_000
    """Answers of one stream."""
    bytes: int = 64 * 1024 * 1024
    """Bytes of the answers of one stream."""
    message_bytes: int = 16 * 1024 * 1024
    """Bytes of one answer."""


class Stream:
    """Sends messages, and reads the answers as they come, so that neither side can block the other."""

    def __init__(self, call: Call, limits: Limits) -> None:
        self.end = ""
        """Why no more answers come; empty while they may."""
        self._call = call
        self._limits = limits
        self._answers: deque[ProcessingResponse] = deque()
        self._news = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    @property
    def ended_well(self) -> bool:
        """Whether the target ended the RPC with status OK."""
        return self.end == "OK"

    async def send(self, message: ProcessingRequest | bytes) -> None:
        """Send one message; a stream that is over takes it in vain, and `end` says why."""
        if self.end:
            return
        data = message if isinstance(message, bytes) else message.SerializeToString()
        try:
            await asyncio.wait_for(self._call.write(data), self._limits.seconds)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._until_end()
        except TimeoutError:
            self._finish(f"took no message for {self._limits.seconds:g} s")

    async def half_close(self) -> None:
        """Say that no more messages come."""
        try:
            await asyncio.wait_for(self._call.done_writing(), self._limits.seconds)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
            pass

    async def next(self) -> ProcessingResponse | None:
        """The next answer; None when there is none in time, or no more come: then `end` is set."""
        try:
            async with asyncio.timeout(self._limits.seconds):
                while not self._answers and not self.end:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return None
        return self._answers.popleft() if self._answers else None

    async def drain(self) -> None:
        """Take what still comes, until the RPC is over or nothing comes in time."""
        while await self.next() is not None:
            pass

    async def close(self) -> None:
        """Leave, as a gateway whose client has left."""
        self._call.cancel()
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    async def _until_end(self) -> None:
        await asyncio.wait([self._reader], timeout=self._limits.seconds)
        self._finish("no status")

    async def _read(self) -> None:
        try:
            await self._read_all()
        except DecodeError:
            self._finish("answered with bytes that are no ProcessingResponse")
        except grpc.aio.AioRpcError as error:
            self._finish(_status(error.code(), error.details()))

    async def _read_all(self) -> None:
        size = 0
        for _ in range(self._limits.answers):
            data = await self._call.read()
            if not isinstance(data, bytes):
                self._finish(_status(await self._call.code(), await self._call.details()))
                return
            size += len(data)
            if size > self._limits.bytes:
                break
            self._answers.append(ProcessingResponse.FromString(data))
            self._news.set()
        self._finish(f"flooded: over {self._limits.answers} answers or {self._limits.bytes} bytes in one stream")

    def _finish(self, end: str) -> None:
        self.end = self.end or end
        self._news.set()


def _status(code: grpc.StatusCode, details: str | None) -> str:
    if code is grpc.StatusCode.INTERNAL and details == "Internal error from Core":
        # What grpc.aio makes of a write to an RPC that is over: the target's own status is lost.
        return "an early end, its status unknown"
    return f"{code.name}: {details}" if details else code.name
