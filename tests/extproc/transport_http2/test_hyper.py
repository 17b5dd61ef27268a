"""hyper, the HTTP/2 of Rust gateways, as the client; skipped where there is no cargo."""

import asyncio
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.kubernetes.build import cache_dir

from .conftest import METHOD, Echo, Serving

SOURCE = Path(__file__).parent / "hyper_client"

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]


def hyper_client() -> Path:
    """The client, built once per machine."""
    files = [SOURCE / name for name in ("Cargo.toml", "Cargo.lock", "src/main.rs")]
    key = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    target = cache_dir() / f"hyper_client-{key}"
    cargo = shutil.which("cargo")
    if cargo is None:
        pytest.skip("no cargo")
    build = [cargo, "build", "--release", "--locked", "--quiet", "--target-dir", str(target)]
    built = subprocess.run(build, cwd=SOURCE, stderr=subprocess.PIPE, text=True)
    if built.returncode:
        if os.environ.get("CI"):
            pytest.fail(built.stderr)
        pytest.skip(f"hyper_client cannot be built here: {built.stderr[-500:]}")
    return target / "release" / "hyper_client"


async def test_hyper_gets_what_it_should(echo: Echo, serving: Serving):
    """Fifty calls at once, fifty dropped in the middle, messages of 3 MB, and pings all the while."""
    transport, port = await serving()
    program = await asyncio.to_thread(hyper_client)
    process = await asyncio.create_subprocess_exec(
        program, f"127.0.0.1:{port}", METHOD, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await asyncio.wait_for(process.communicate(), 120)
    assert (process.returncode, output) == (0, b"fine\n"), output.decode()
    assert (echo.ended.count("fine"), echo.ended.count("CancelledError")) == (51, 50)
    assert transport.status().buffered_bytes == 0
