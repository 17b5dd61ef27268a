"""A worker that serves its tokenizer files over HTTP is the source of the tokenizer: bounded, checked, followed."""

import functools
import json
import os
import threading
import time
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
import structlog.testing
from aiohttp import web
from prometheus_client import CollectorRegistry

from epp.prompts.model_source import ModelSourceError
from epp.prompts.prompt import TokenSource
from epp.prompts.reader import PromptReader
from epp.prompts.worker_files import DownloadLimits, WorkerFiles
from epp.settings import Settings
from tests.small_model import write_small_model
from tests.waiting import free_port, until

BODY = json.dumps({"messages": [{"role": "user", "content": "the file has one test"}]}).encode()


class Worker:
    """`python -m http.server` in a folder, with faults to order; remembers what it was asked."""

    def __init__(self, folder, port=0):
        self.folder = folder
        self.asked = []
        self.status = 0
        self.heads = True
        self.dated = True
        self.page = False
        self.drip = False
        worker = self

        class Handler(SimpleHTTPRequestHandler):
            def do_GET(self):
                worker.asked.append(("GET", self.path))
                if worker.drip:
                    return self.drop_by_drop()
                if worker.page or worker.status:
                    return self.answer()
                return super().do_GET()

            def do_HEAD(self):
                worker.asked.append(("HEAD", self.path))
                if not worker.heads:
                    return self.send_error(501)
                return super().do_HEAD()

            def answer(self):
                self.send_response(worker.status or 200)
                self.send_header("content-type", "text/html")
                self.send_header("location", "http://127.0.0.1:1/elsewhere")
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"hi")

            def drop_by_drop(self):
                self.send_response(200)
                self.send_header("content-length", "1000000")
                self.end_headers()
                try:
                    while not worker.closing.wait(0.02):
                        self.wfile.write(b" ")
                except OSError:
                    pass

            def send_header(self, name, value):
                if worker.dated or name.lower() != "last-modified":
                    super().send_header(name, value)

            def log_message(self, *_):
                pass

        self.closing = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", port), functools.partial(Handler, directory=str(folder)))
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    def close(self):
        self.closing.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def serve(tmp_path):
    workers = []

    def start(port=0):
        folder = tmp_path / "served"
        if not folder.exists():
            folder.mkdir()
            write_small_model(folder)
        workers.append(Worker(folder, port))
        return workers[-1]

    yield start
    for worker in workers:
        worker.close()


@pytest.fixture
async def make():
    readers = []

    def one(url, **settings):
        settings = {"tokenizer_check_seconds": 0.02, "tokenizer_download_seconds": 30.0} | settings
        reader = PromptReader.from_settings(
            Settings(tokenizer=url, tokenize_budget_ms=60_000, **settings), CollectorRegistry()
        )
        readers.append(reader)
        reader.start()
        return reader

    yield one
    for reader in readers:
        await reader.stop()


async def tokens(reader):
    prompt = (await reader.read(path="", content_type="", body=BODY, request_id="")).prompt
    return prompt.tokens.tolist() if prompt.source is TokenSource.TOKENIZER else None


def status(reader):
    return reader.status().models[0]


async def test_a_workers_files_give_the_tokens_of_a_directory_with_these_files(serve, make):
    worker = serve()
    local = make(str(worker.folder))
    served = make(worker.url + "/")
    assert await tokens(served) == await tokens(local) is not None
    assert (status(served).origin, status(served).problem, status(served).chat_template) == (worker.url, "", True)


async def test_changed_files_are_taken_over_and_bad_ones_are_not(serve, make):
    worker = serve()
    reader = make(worker.url)
    before = await tokens(reader)
    template = worker.folder / "chat_template.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}!{% endfor %}")

    async def changed():
        return await tokens(reader) != before

    await until(changed)
    after = await tokens(reader)
    template.write_text("{% for %}")
    await until(lambda: f"{worker.url}/chat_template.jinja: not a chat template" in status(reader).problem)
    assert await tokens(reader) == after
    template.write_text("{% for m in messages %}{{ m.content }}!{% endfor %}{# fine #}")
    await until(lambda: status(reader).problem == "")
    assert await tokens(reader) == after


async def test_files_that_did_not_change_are_not_fetched_again(serve, make):
    worker = serve()
    make(worker.url)
    fetched = [path for kind, path in worker.asked if kind == "GET"]
    await until(lambda: len([1 for kind, _ in worker.asked if kind == "HEAD"]) > 30)
    assert [path for kind, path in worker.asked if kind == "GET"] == fetched


@pytest.mark.parametrize("lack", ["heads", "dated"])
async def test_a_worker_that_tells_no_versions_is_followed_by_its_contents(serve, make, lack):
    worker = serve()
    setattr(worker, lack, False)
    reader = make(worker.url)
    before = await tokens(reader)
    model = reader.models.find("")
    await until(lambda: len(worker.asked) > 60)
    assert reader.models.find("") is model
    (worker.folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}?{% endfor %}")

    async def changed():
        return await tokens(reader) != before

    await until(changed)


def test_other_dates_of_the_same_files_are_no_change(serve):
    worker = serve()
    files = WorkerFiles(worker.url, DownloadLimits(1 << 20, 30))
    first = files.stamp()
    template = worker.folder / "chat_template.jinja"
    for second in range(2):
        os.utime(template, (second, second))
        assert files.stamp() == first
    worker.asked.clear()
    os.utime(template, (0, 0))
    assert files.stamp() == first
    assert {kind for kind, _ in worker.asked} == {"HEAD"}


async def test_the_epp_starts_before_its_workers_and_takes_the_files_when_they_come(serve, make):
    port = free_port()
    with structlog.testing.capture_logs() as log:
        reader = make(f"http://127.0.0.1:{port}", tokenizer_check_seconds=0)
    assert [(entry["log_level"], entry["event"]) for entry in log] == [("warning", "no tokenizer yet")]
    assert await tokens(reader) is None
    assert f"127.0.0.1:{port}" in status(reader).problem
    serve(port)
    await until(lambda: status(reader).problem == "")
    assert await tokens(reader) is not None


async def test_a_worker_that_goes_away_leaves_its_tokenizer_here(serve, make):
    worker = serve()
    reader = make(worker.url)
    before = await tokens(reader)
    worker.status = 503
    worker.heads = False
    await until(lambda: "503" in status(reader).problem)
    assert await tokens(reader) == before
    worker.status = 0
    await until(lambda: status(reader).problem == "")


def failing(worker, most_bytes=1 << 20, seconds=30.0):
    with pytest.raises(ModelSourceError) as failure:
        WorkerFiles(worker.url, DownloadLimits(most_bytes, seconds)).stamp()
    assert str(failure.value).startswith(worker.url)
    return str(failure.value)


def test_what_is_wrong_is_said(serve):
    worker = serve()
    assert "more than 1000 bytes" in failing(worker, most_bytes=1000)
    worker.status = 302
    assert "/tokenizer.json: answered with status 302" in failing(worker)
    worker.status, worker.page = 0, True
    assert "web page" in failing(worker)
    worker.page = False
    for path in worker.folder.iterdir():
        path.unlink()
    assert "serves none of tokenizer.json, tekken.json" in failing(worker)


def test_a_drip_ends_with_the_time_for_it(serve):
    worker = serve()
    worker.drip = True
    start = time.monotonic()
    assert "within 0.2 s" in failing(worker, seconds=0.2)
    assert time.monotonic() - start < 30


async def test_meanwhile_the_workers_render(make):
    async def render(request):
        return web.json_response({"token_ids": [7, 8]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions/render", render)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    engine = f"http://127.0.0.1:{runner.addresses[0][1]}"
    reader = make(f"http://127.0.0.1:{free_port()}", render_url=engine, render_service_budget_ms=30_000)
    prompt = (await reader.read(path="", content_type="", body=BODY, request_id="")).prompt
    await runner.cleanup()
    assert (prompt.tokens.tolist(), prompt.source) == ([7, 8], TokenSource.RENDER)
