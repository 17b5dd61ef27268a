"""What real engines hold and report is what we know and predict, step by step and over their own sockets."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.wheels import unpacked

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]


def wheel(package: str, version: str) -> Path:
    try:
        return unpacked(package, version)
    except (OSError, subprocess.CalledProcessError) as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"no wheel of {package} {version}: {error}")


def check(module: str, *arguments: str) -> dict[str, int]:
    """Run one check in a process of its own: an engine's modules can be loaded once."""
    command = [sys.executable, "-m", f"tests.engines.{module}", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])  # what comes before is the picker's log


@pytest.mark.parametrize(
    ("version", "namespaces", "seed"),
    [("0.33.0", True, 1), ("0.33.0", True, 2), ("0.24.0", True, 3), ("0.11.0", False, 4)],
)
def test_the_index_is_vllms_cache(version, namespaces, seed):
    """Version 0.11 names neither salt nor adapter in its events."""
    options = ["namespaces"] if namespaces else []
    seen = check("check_vllm", str(wheel("vllm", version)), str(seed), "1200", *options)
    assert seen["requests"] >= 1200
    assert seen["resets"]
    assert seen["most_copies"] > 1
    assert seen["batches"] > 2000  # a replay beyond what old publishers' sockets hold
    assert seen["restarts"]


def test_the_index_is_sglangs_radix_cache():
    seen = check("check_sglang", str(wheel("sglang", "0.5.23")), "1", "2000")
    assert seen["cached_tokens"]
    assert seen["resets"]
    assert seen["restarts"]
