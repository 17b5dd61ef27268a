"""`epp tokens` shows text, ids and blocks, and finds the first difference from an engine."""

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from epp.cli import main
from tests.small_model import TEMPLATE, write_small_model

CHAT = {"model": "m", "messages": [{"role": "user", "content": "one two three four five six seven eight nine ten"}]}


@pytest.fixture
def body(tmp_path):
    path = tmp_path / "body.json"
    path.write_text(json.dumps(CHAT))
    return str(path)


@pytest.fixture
def tokenizer(model_directory, monkeypatch):
    monkeypatch.setenv("EPP_TOKENIZER_PATH", str(model_directory))
    monkeypatch.setenv("EPP_BLOCK_SIZE", "4")


@pytest.fixture
def engine():
    """An engine whose answer the test sets."""

    class Handler(BaseHTTPRequestHandler):
        answer = b"{}"

        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", str(len(Handler.answer)))
            self.end_headers()
            self.wfile.write(Handler.answer)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    Handler.url = f"http://127.0.0.1:{server.server_port}"
    yield Handler
    server.shutdown()
    thread.join()
    server.server_close()


def report(capsys, *arguments):
    code = main(["tokens", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_report(tokenizer, body, capsys):
    code, shown = report(capsys, body)
    assert code == 0
    assert shown["text"].startswith("<｜begin▁of▁sentence｜>")
    assert len(shown["block_keys"]) == len(shown["tokens"]) // 4
    assert (shown["api"], shown["model"], shown["source"]) == ("chat", "m", "tokenizer")
    assert main(["tokens", body]) == 0
    assert "full blocks" in capsys.readouterr().out


def test_the_first_difference_from_an_engine_is_found(tokenizer, body, engine, capsys):
    _, shown = report(capsys, body)
    engine.answer = json.dumps({"token_ids": shown["tokens"]}).encode()
    assert report(capsys, body, "--compare", engine.url)[0] == 0
    engine.answer = json.dumps({"token_ids": [*shown["tokens"][:5], 9, 9]}).encode()
    code, differing = report(capsys, body, "--compare", engine.url)
    assert (code, differing["difference"]) == (1, 5)
    engine.answer = b"{}"
    assert main(["tokens", body, "--compare", engine.url]) == 3


@pytest.fixture
def simulated(tmp_path):
    """A running simulated worker, which renders and tokenises by code of its own; its folder and base URL."""
    folder = write_small_model(tmp_path)
    command = [sys.executable, "-m", "epp.cli", "simulate", "engine", "--tokenizer", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield folder, f"http://127.0.0.1:{json.loads(process.stdout.readline())['port']}"
        process.terminate()


def test_a_running_worker_has_the_same_tokens_until_its_template_is_another(simulated, tmp_path, monkeypatch, capsys):
    folder, url = simulated
    monkeypatch.setenv("EPP_TOKENIZER_PATH", str(folder))
    turns = [
        {"role": "system", "content": "the file has <|user|> one"},
        {"role": "user", "content": [{"type": "text", "text": "中文 🙂  \n\n"}, {"type": "text", "text": "1234"}]},
        {"role": "assistant", "content": "e\u0301"},
        {"role": "user", "content": "fails " * 3000},
    ]
    path = tmp_path / "body.json"
    for request, api in (({"messages": turns}, "chat/completions"), ({"prompt": "a test, fails"}, "completions")):
        path.write_text(json.dumps({"model": "simulated", **request}))
        assert main(["tokens", str(path), "--path", f"/v1/{api}", "--compare", url]) == 0
        assert "the engine has the same" in capsys.readouterr().out
    (tmp_path / "other.jinja").write_text(TEMPLATE.replace("<|assistant|>", "<|assistant|> "))
    monkeypatch.setenv("EPP_CHAT_TEMPLATE", str(tmp_path / "other.jinja"))
    path.write_text(json.dumps({"model": "simulated", "messages": turns}))
    assert main(["tokens", str(path), "--compare", url]) == 1
    assert "the engine differs from token" in capsys.readouterr().out


def test_what_is_no_body_is_bad_input(tmp_path, capsys):
    bad = tmp_path / "bad.json"
    bad.write_text('{"messages": 1}')
    assert main(["tokens", str(bad)]) == 2
    assert "$.messages" in capsys.readouterr().err
    assert main(["tokens", str(tmp_path / "none.json")]) == 2
