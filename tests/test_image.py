"""The container image: no engine builds it here, so its steps are followed in a fresh environment."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
UV = ROOT / ".tools" / "uv" / "bin" / "uv"
MEGABYTE = 1_000_000
BASE_PULLED = 45 * MEGABYTE
"""python:3.11-slim-bookworm, compressed."""
BUDGET = 300 * MEGABYTE
PLATFORMS = {"amd64": r"(manylinux\w*_x86_64|none-any)", "arm64": r"(manylinux\w*_aarch64|none-any)"}


CPYTHON = r"-(cp311-cp311|cp3\d+-abi3|py3-none|py2.py3-none)-"


def wheels(platform: str) -> dict[str, list[int]]:
    """Sizes of the wheels that fit, by package that the image installs, from the lock file."""
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    exported = subprocess.run(
        [
            UV,
            "export",
            "--frozen",
            "--no-dev",
            "--extra",
            "uvloop",
            "--extra",
            "gpt-oss",
            "--no-hashes",
            "--no-emit-project",
            "--quiet",
        ],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    wanted = re.findall(r"^([\w.-]+)==([^\s;]+)", exported, re.MULTILINE)
    fitting: dict[str, list[int]] = {name: [] for name, _ in wanted}
    for package in lock["package"]:
        if (package["name"], package["version"]) in wanted:
            for wheel in package["wheels"]:
                if re.search(CPYTHON, wheel["url"]) and re.search(PLATFORMS[platform], wheel["url"]):
                    fitting[package["name"]].append(wheel["size"])
    return fitting


def test_the_final_stage_is_small_and_unprivileged():
    build, final = DOCKERFILE.split("\nFROM ")[1:]
    assert "uv sync --frozen --no-dev" in build
    assert not re.search(r"\b(apt-get|pip|uv|gcc)\b", re.sub(r"#.*", "", final)), "no build tools where it runs"
    assert re.search(r"^USER \d+:\d+$", final, re.MULTILINE), "Kubernetes checks runAsNonRoot only for numbers"
    assert "HEALTHCHECK" in final
    assert '"epp", "status"' in final
    pinned = re.search(r"uv==(\S+)", DOCKERFILE).group(1)
    assert f"UV_VERSION := {pinned}" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_dependency_has_a_wheel_and_all_fit_the_budget(platform):
    sizes = wheels(platform)
    assert len(sizes) > 20
    assert [name for name, fitting in sizes.items() if not fitting] == [], "these would have to be compiled"
    total = BASE_PULLED + sum(min(fitting) for fitting in sizes.values())
    assert total < BUDGET, f"{total / MEGABYTE:.0f} MB to pull"


@pytest.mark.slow
def test_the_install_steps_give_a_working_command(tmp_path: Path):
    """The build stage's steps with nothing but the files that it copies; then the command, as another user would."""
    for name in ("pyproject.toml", "uv.lock", "README.md", "LICENSE"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    for path in (ROOT / "epp").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            target = tmp_path / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    step = re.search(r"^RUN (uv sync .*) --python \S+$", DOCKERFILE, re.MULTILINE).group(1).split()
    environ = os.environ | {"UV_PROJECT_ENVIRONMENT": str(tmp_path / "opt"), "UV_PYTHON_DOWNLOADS": "never"}
    python = ROOT / ".venv" / "bin" / "python"
    subprocess.run([UV, *step[1:], "--quiet", "--python", python], cwd=tmp_path, env=environ, check=True)
    epp = tmp_path / "opt" / "bin" / "epp"
    version = subprocess.run([epp, "--version"], check=True, capture_output=True, text=True, cwd="/").stdout
    assert version.startswith("epp ")
    healthcheck = subprocess.run([epp, "status", "--json", "--url", "http://127.0.0.1:1"], capture_output=True, cwd="/")
    assert healthcheck.returncode == 3, "unhealthy while nothing serves"
    files = [path for path in (tmp_path / "opt").rglob("*") if path.is_file() and not path.is_symlink()]
    size = sum(path.stat().st_size for path in files)
    assert size < BUDGET, f"{size / MEGABYTE:.0f} MB installed"


def test_the_dockerfile_passes_hadolint():
    lint = subprocess.run([ROOT / ".venv" / "bin" / "hadolint", ROOT / "Dockerfile"], capture_output=True, text=True)
    assert lint.returncode == 0, lint.stdout + lint.stderr
