"""A running `epp serve`, asked as a gateway asks it."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import grpc.aio

from epp._pb.external_processor_pb2 import ProcessingResponse
from tests.extproc.grpc_gateway import Gateway
from tests.extproc.world import BUFFERED_PARTIAL, DUPLEX, config, destination, request_body, request_headers
from tests.waiting import free_port

CHAT = "/v1/chat/completions"
_PIECE = 60_000


def environment(folder: Path, ports: Sequence[int], **more: str) -> dict[str, str]:
    """Settings of an EPP over one worker on 127.0.0.1 with these ports."""
    endpoints = f"endpoints:\n  - {{name: w0, address: 127.0.0.1, ports: {list(ports)}}}\n"
    (folder / "endpoints.yaml").write_text(endpoints)
    return {
        "EPP_HOST": "127.0.0.1",
        "EPP_ENDPOINTS_FILE": str(folder / "endpoints.yaml"),
        "EPP_KV_EVENTS": "false",
        "EPP_SECURE_SERVING": "false",
        "EPP_TOKENIZE_BUDGET_MS": "60000",
        "EPP_RENDER_BUDGET_MS": "20000",
        "EPP_PICK_TIMEOUT_MS": "60000",
        **{f"EPP_{name}_PORT": str(free_port()) for name in ("GRPC", "HEALTH", "METRICS", "ADMIN")},
        **more,
    }


class Served:
    """A running EPP."""

    def __init__(self, environ: dict[str, str], folder) -> None:
        self.environ = environ
        self.folder = folder

    def channel(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(f"127.0.0.1:{self.environ['EPP_GRPC_PORT']}")

    def shown(self) -> str:
        """What `epp status` prints."""
        url = f"http://127.0.0.1:{self.environ['EPP_ADMIN_PORT']}"
        command = [sys.executable, "-m", "epp.cli", "status", "--url", url]
        wide = {**os.environ, "COLUMNS": "300"}
        return subprocess.run(command, capture_output=True, text=True, env=wide, check=True).stdout

    def prompts(self):
        """The section of /status."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.environ['EPP_ADMIN_PORT']}/status", timeout=30) as answer:
            return json.load(answer)["prompts"]


async def ask(served, body: bytes, *, path: str = CHAT, mode: int = DUPLEX, whole: bool = True) -> ProcessingResponse:
    """The answer that carries the pick, or the refusal."""
    pieces = [body[at : at + _PIECE] for at in range(0, len(body), _PIECE)] or [b""]
    if mode == BUFFERED_PARTIAL:
        pieces = [body]
    async with served.channel() as channel:
        gateway = Gateway(channel)
        await gateway.send(request_headers(("content-type", "application/json"), modes=config(mode), path=path))
        for at, piece in enumerate(pieces, start=1):
            await gateway.send(request_body(piece, end=whole and at == len(pieces)))
        answers = await gateway.answers(1 if mode == DUPLEX else 2)
        gateway.call.cancel()
    return answers[-1]


def picked(answer: ProcessingResponse) -> bool:
    kind = answer.WhichOneof("response")
    if kind == "immediate_response":
        return False
    return destination(answer)[0].startswith("127.0.0.1:")


def encoded(body) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()
