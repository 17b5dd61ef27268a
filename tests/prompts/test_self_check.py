"""`epp serve` with a tokenizer whose tokens cuts do change, though no test at load shows it: found out, loudly."""

import asyncio
import json
import threading
import urllib.request

from tokenizers import Tokenizer

from tests.prompts.served import Served, ask, encoded, environment, picked
from tests.small_model import write_small_model
from tests.test_app import serving, status
from tests.waiting import until

LOOKS_FAR_AHEAD = r" ?[a-z]+(?=[\s\S]* qq)| ?[a-z]{1,3}|[\s\S]"
"""Words stay whole only where " qq" follows, however far behind: what a cut hides."""
TEXT = "the file has one test that fails because of a bound " * 150 + "qq"


def lying_model(folder):
    """The small model with that pre-tokenizer."""
    path = write_small_model(folder) / "tokenizer.json"
    description = json.loads(path.read_text())
    split = {"type": "Split", "pattern": {"Regex": LOOKS_FAR_AHEAD}, "behavior": "Isolated", "invert": False}
    description["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [split, description["pre_tokenizer"] | {"use_regex": False}],
    }
    path.write_text(json.dumps(description))
    return Tokenizer.from_file(str(path))


async def test_a_lying_tokenizer_loses_its_token_cache(tmp_path):
    tokenizer = lying_model(tmp_path)
    whole = len(tokenizer.encode(TEXT, add_special_tokens=False).ids)
    environ = environment(tmp_path, [8000], EPP_TOKENIZER_PATH=str(tmp_path), EPP_TOKEN_CHECK_SHARE="1")
    body = encoded({"model": "m", "prompt": TEXT})
    log = []
    with serving(environ) as process:
        served = Served(environ, tmp_path)
        threading.Thread(target=lambda: log.extend(process.stderr), daemon=True).start()
        await asyncio.to_thread(status, environ, process)
        assert served.prompts()["models"][0]["token_cache_rules"]

        assert picked(await ask(served, body, path="/v1/completions"))
        await until(lambda: "token cache is off" in served.prompts()["models"][0]["problem"])
        assert served.prompts()["models"][0]["token_cache_rules"] == []
        assert metric(environ, 'epp_token_cache_checks_total{result="different"}') == 1
        assert any("token cache switched off" in line and "error" in line.lower() for line in log)
        assert "token cache is off" in await asyncio.to_thread(served.shown)

        before = metric(environ, "epp_prompt_tokens_total")
        assert picked(await ask(served, body, path="/v1/completions"))
        assert metric(environ, "epp_prompt_tokens_total") - before == whole


def metric(environ, name):
    with urllib.request.urlopen(f"http://127.0.0.1:{environ['EPP_METRICS_PORT']}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(name + " "))
