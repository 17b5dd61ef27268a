"""Judges written in Go: h2spec, a conformance suite of RFC 9113 and 7541, and gRPC's own client."""

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from epp.extproc.transport.http2.limits import Limits
from tests.kubernetes.build import built

from .conftest import METHOD, Serving

HERE = Path(__file__).parent

pytestmark = pytest.mark.timeout(600)


def program(name: str) -> Path:
    """A Go program of this folder, built once per machine."""
    try:
        return built(name, HERE / name, "-s -w")
    except (OSError, subprocess.CalledProcessError) as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"{name} cannot be built here: {error}")


async def run(name: str, *arguments: str) -> str:
    """Run it while the server serves; its output."""
    path = await asyncio.to_thread(program, name)
    process = await asyncio.create_subprocess_exec(
        path, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await asyncio.wait_for(process.communicate(), 300)
    assert process.returncode == 0, output.decode()
    return output.decode()


@pytest.mark.parametrize("path", ["/", METHOD])
async def test_h2spec_finds_no_fault(serving: Serving, path: str):
    _, port = await serving(Limits(streams=100))
    output = await run("h2spec", "127.0.0.1", str(port), path)
    assert "146 tests, 146 passed, 0 skipped, 0 failed" in output


async def test_the_go_client_gets_what_it_should(serving: Serving):
    _, port = await serving()
    assert "fine" in await run("go_client", f"127.0.0.1:{port}", METHOD)
