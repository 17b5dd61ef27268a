"""`epp serve` with tokenizers, as gateways meet it: hostile bodies, changing files, several models, adapters."""

import asyncio
import json
import time
from collections.abc import Iterator

import pytest
import yaml

from tests.extproc.world import BUFFERED_PARTIAL
from tests.prompts.served import Served, ask, encoded, environment, picked
from tests.small_model import TEMPLATE, write_small_model
from tests.test_app import serving, status
from tests.waiting import until

USER = {"role": "user", "content": "the file has one test"}


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    for name in ("one", "two"):
        (folder / name).mkdir()
        write_small_model(folder / name)
    models = [
        {"names": ["one"], "tokenizer": str(folder / "one"), "adapters": ["one-sql"]},
        {"names": ["two"], "tokenizer": str(folder / "two")},
    ]
    (folder / "models.yaml").write_text(yaml.safe_dump({"models": models}))
    environ = environment(
        folder,
        [8000, 8001],
        EPP_MODELS_FILE=str(folder / "models.yaml"),
        EPP_TOKENIZER_CHECK_SECONDS="0.2",
        EPP_REJECT_BAD_REQUESTS="true",
    )
    with serving(environ) as process:
        status(environ, process)
        yield Served(environ, folder)


NESTED = b'{"messages": [{"role": "user", "content": "x"}], "x": '
ROUTED = {
    "nesting in a field that nobody reads": NESTED + b"[" * 90_000 + b"]" * 90_000 + b"}",
    "nesting in a template's variables": b'{"messages": [], "chat_template_kwargs": '
    + b'{"a":' * 5000
    + b"1"
    + b"}" * 5001,
    "100,000 messages": {"model": "one", "messages": [USER] * 100_000},
    "a million keys": b'{"messages": [{"role": "user", "content": "x"}]'
    + b"".join(b',"%d":1' % i for i in range(1_000_000))
    + b"}",
    "a million token ids": b'{"messages": [], "prompt": [' + b"7," * 1_000_000 + b"7]}",
    "equal keys": b'{"model": "one", "model": "two", "messages": [{"role": "user", "content": "x"}]}',
    "NaN": b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
    "a lone surrogate": b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    "a template bomb": {"messages": [USER], "chat_template": "{% for a in range(999999999) %}{% endfor %}"},
    "an unknown part": {"messages": [{"role": "user", "content": [{"type": "hologram"}]}]},
    "2 MB of white space": {"messages": [{"role": "user", "content": " " * 2_000_000}]},
    "8 MB of text": {"model": "one", "messages": [{"role": "user", "content": "a file, " * 1_000_000}]},
    "an image of 8 MB": {
        "messages": [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:" + "A" * 8_000_000}}]}
        ]
    },
}
REFUSED = {
    "no JSON": (b"{messages", "byte"),
    "cut off": (b'{"messages": [', "truncated"),
    "no JSON, and large": (b'{"messages": [' + b'{"role": "user", "content": "x"},' * 30_000, "truncated"),
    "wrong type": ({"messages": "x"}, "$.messages"),
    "wrong role": ({"messages": [USER, {"role": 7, "content": "x"}]}, "$.messages[1].role"),
    "wrong content": ({"messages": [{"role": "user", "content": 5}]}, "$.messages[0].content"),
    "wrong far behind": ({"messages": [USER] * 50_000 + [{"role": "user", "content": 5}]}, "$.messages[50000].content"),
    "no messages": ({"model": "one"}, "messages"),
}


@pytest.mark.parametrize("name", ROUTED)
async def test_what_an_engine_may_take_is_routed_and_holds_up_nobody(served, name):
    """While the body is worked on, small requests are answered as ever."""
    task = asyncio.ensure_future(ask(served, encoded(ROUTED[name])))
    slowest = 0.0
    while not task.done():
        start = time.monotonic()
        assert picked(await ask(served, encoded({"model": "one", "messages": [USER]})))
        slowest = max(slowest, time.monotonic() - start)
    assert picked(await task)
    assert slowest < 10


@pytest.mark.parametrize("name", REFUSED)
async def test_what_the_engine_refuses_is_400_with_its_place(served, name):
    body, place = REFUSED[name]
    answer = await ask(served, encoded(body))
    assert answer.immediate_response.status.code == 400
    assert place in json.loads(answer.immediate_response.body)["error"]["message"]


async def test_what_a_gateway_cut_off_is_routed(served):
    whole = await ask(served, b'{"messages": [', mode=BUFFERED_PARTIAL)
    assert whole.immediate_response.status.code == 400
    assert picked(await ask(served, b'{"messages": [', mode=BUFFERED_PARTIAL, whole=False))


async def test_each_model_has_its_tokenizer_and_its_files_may_change_under_load(served):
    read = served.prompts()["read"].get("tokenizer", 0)
    for name in ("one", "two", "one-sql"):
        assert picked(await ask(served, encoded({"model": name, "messages": [USER]})))
    assert served.prompts()["read"]["tokenizer"] >= read + 2

    async def load() -> None:
        while True:
            assert picked(await ask(served, encoded({"model": "two", "messages": [USER] * 20})))

    loading = [asyncio.ensure_future(load()) for _ in range(2)]
    template = served.folder / "two" / "chat_template.jinja"
    template.write_text("{% broken")
    await until(lambda: "chat template" in served.prompts()["models"][1]["problem"])
    template.write_text(TEMPLATE + "{# changed #}")
    await until(lambda: served.prompts()["models"][1]["problem"] == "")
    assert not any(task.done() for task in loading)
    for task in loading:
        task.cancel()
    await asyncio.gather(*loading, return_exceptions=True)


def test_without_a_tokenizer_the_status_says_so(tmp_path):
    environ = environment(tmp_path, [8000])
    with serving(environ) as process:
        status(environ, process)
        assert "prefixes are compared as text" in Served(environ, tmp_path).shown()
