"""Texts are encoded exactly, off the event loop, only where they are new, and never for longer than the budget."""

import asyncio
import threading
import tracemalloc
from time import perf_counter

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from epp.prompts.chunk_cache import ChunkCache
from epp.prompts.cuts import SPACE, Cutter, safe_rules
from epp.prompts.encoding import CachedEncoding, EncodingLimits, EncodingThreads, LateError
from epp.prompts.metrics import EncodingMetrics
from tests.prompts.real_tokenizers import encoder
from tests.waiting import until

TEXT = "The quick brown fox jumps over the lazy dog, again and again; 1234 times.\n" * 400


class Slow:
    """A tokenizer whose calls wait until they may go on; remembers what it had to encode.

    Each of its tokens is the length of the whole text, so every cut changes them.
    """

    added_tokens = ()
    patterns = ()

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.encoded: list[str] = []

    def vocabulary(self):
        return []

    def encode_all(self, texts):
        self.go.wait(30)
        self.encoded += texts
        return [np.array([len(text) for _ in text.split()], dtype=np.uint32) for text in texts]


@pytest.fixture
async def make():
    made = []

    def one(text_encoder, rules=(SPACE,), **limits):
        limits = {"budget_seconds": 30.0, "check_share": 0.0} | limits
        registry = CollectorRegistry()
        threads = EncodingThreads(EncodingLimits(**limits), ChunkCache(1 << 24), EncodingMetrics(registry))
        made.append(threads)
        encoding = CachedEncoding(text_encoder, Cutter(rules), threads)
        encoding.registry = registry
        encoding.threads = threads
        return encoding

    yield one
    for threads in made:
        threads.close()


@pytest.mark.parametrize("name", ["deepseek", "sentencepiece"])
async def test_turn_by_turn_equals_whole(make, name):
    encoding = make(encoder(name), safe_rules(encoder(name)))
    for size in (100, 5000, 5100, 20_000, len(TEXT)):
        encoded = await encoding.encode(TEXT[:size])
        assert encoded.tokens.tolist() == encoder(name).encode_all([TEXT[:size]])[0].tolist()
        assert (encoded.unseen_characters, encoded.late) == (0, "")


async def test_a_turn_only_costs_what_is_new(make):
    slow = Slow()
    encoding = make(slow)
    await encoding.encode(TEXT)
    before = sum(map(len, slow.encoded))
    await encoding.encode(TEXT + "And one more turn." * 10)
    assert sum(map(len, slow.encoded)) - before < 2 * 2048 + 400


async def test_a_late_tokenizer_does_not_hold_the_pick(make):
    slow = Slow()
    encoding = make(slow, budget_seconds=0.05)
    known = await encoding.encode(TEXT[:10_000])
    slow.go.clear()
    start = perf_counter()
    late = await encoding.encode(TEXT)
    assert perf_counter() - start < 5
    assert late.late == "late"
    assert 0 < len(late.tokens) <= len(known.tokens)
    assert late.unseen_characters > len(TEXT) - 10_000
    slow.go.set()
    while (again := await encoding.encode(TEXT)).late:
        pass
    assert len(again.tokens) > len(known.tokens)


async def test_more_work_than_the_queue_takes_is_not_waited_for(make):
    slow = Slow()
    encoding = make(slow, queued_characters=40_000)
    slow.go.clear()
    first = asyncio.ensure_future(encoding.encode(TEXT))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    second = await encoding.encode("Another text. " * 2000)
    assert (second.late, len(second.tokens)) == ("queue_full", 0)
    slow.go.set()
    assert (await first).late == ""
    assert encoding.threads.queued_characters == 0


async def test_an_abandoned_request_gives_its_place_in_the_queue_back(make):
    slow = Slow()
    encoding = make(slow)
    slow.go.clear()
    task = asyncio.ensure_future(encoding.encode(TEXT * 10))
    await asyncio.sleep(0.05)
    task.cancel()
    slow.go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: encoding.threads.queued_characters == 0)
    assert sum(map(len, slow.encoded)) < len(TEXT) * 9


async def test_a_difference_switches_the_cache_off(make):
    encoding = make(Slow(), check_share=1.0)
    await encoding.encode(TEXT)
    await until(lambda: not encoding.cutter.rules)
    labels = {"result": "different"}
    assert encoding.registry.get_sample_value("epp_token_cache_checks_total", labels) == 1
    again = await encoding.encode(TEXT)
    assert again.tokens.tolist() == Slow().encode_all([TEXT])[0].tolist()


async def test_a_check_in_a_thread_of_the_caller_switches_the_cache_off_too(make):
    encoding = make(Slow(), check_share=1.0)
    whole = Slow().encode_all([TEXT])[0].tolist()
    assert encoding.encode_now(TEXT).tolist() == whole
    assert encoding.differed
    assert encoding.rules == ()
    assert encoding.encode_now(TEXT).tolist() == whole


async def test_work_beyond_the_budget_goes_on_and_is_not_waited_for(make):
    threads = make(Slow(), budget_seconds=0.05, queued_characters=1000).threads
    go = threading.Event()
    with pytest.raises(LateError, match="late"):
        await threads.within_budget(lambda: go.wait(30), 600)
    with pytest.raises(LateError, match="queue_full"):
        await threads.within_budget(lambda: True, 600)
    go.set()
    await until(lambda: threads.queued_characters == 0)
    assert await make(Slow()).threads.within_budget(lambda: 5, 600) == 5


async def test_work_that_fails_late_is_no_fault_of_anybody(make):
    threads = make(Slow(), budget_seconds=0.05).threads
    go = threading.Event()

    def work():
        go.wait(30)
        raise ValueError

    with pytest.raises(LateError):
        await threads.within_budget(work, 1)
    go.set()
    await until(lambda: threads.queued_characters == 0)


async def test_a_sampled_check_of_a_good_tokenizer_finds_nothing(make):
    encoding = make(encoder("deepseek"), safe_rules(encoder("deepseek")), check_share=1.0)
    await encoding.encode(TEXT)
    labels = {"result": "equal"}
    await until(lambda: encoding.registry.get_sample_value("epp_token_cache_checks_total", labels) == 1)
    assert encoding.cutter.rules


async def test_lone_surrogates_are_an_error_of_the_text(make):
    encoding = make(encoder("deepseek"))
    for text in ("\ud800", "\ud800" + TEXT):
        with pytest.raises(UnicodeEncodeError):
            await encoding.encode(text)


def test_the_cache_counts_the_bytes_that_it_takes():
    text = "".join(f"The {i} quick brown foxes — some of them — jump over the {i}th lazy dog. " for i in range(8000))
    deepseek = encoder("deepseek")
    chunks = Cutter(safe_rules(deepseek)).cut(text)
    tracemalloc.start()
    cache = ChunkCache(1 << 30)
    before, _ = tracemalloc.get_traced_memory()
    for at in range(0, len(chunks), 8):
        group = [chunk[:-1] + chunk[-1] for chunk in chunks[at : at + 8]]
        for chunk, ids in zip(group, deepseek.encode_all(group), strict=True):
            cache.put((0, chunk), ids)
    del group, chunk, ids
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(cache) > 200
    assert 0.9 < taken / cache.bytes < 1.1


def test_the_cache_stays_within_its_bytes_and_forgets_the_least_recent():
    cache = ChunkCache(100_000)
    tokens = np.zeros(500, dtype=np.uint32)
    for i in range(200):
        cache.put((0, f"{i:0500}"), tokens)
        cache.get((0, f"{0:0500}"))
        assert cache.bytes <= cache.limit
    assert cache.get((0, f"{0:0500}")) is tokens
    assert cache.get((0, f"{1:0500}")) is None
    assert cache.get((1, f"{0:0500}")) is None
    cache.put((0, "x" * 90_000), tokens)
    assert cache.get((0, "x" * 90_000)) is None
    cache.clear()
    assert (len(cache), cache.bytes) == (0, 0)
