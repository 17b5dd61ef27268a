"""Large conversations and foreign templates are rendered apart, for no longer than the budget, and nothing lingers."""

import asyncio
import contextlib
from time import perf_counter

import pytest

from epp.prompts.asked import ChatPrompt, Message
from epp.prompts.model import WithoutTokensError
from epp.prompts.side_process import SideProcess
from tests.waiting import until

TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
FOR_EVER = (
    "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}" + "{% endfor %}" * 2
)


def prompt(*contents):
    return ChatPrompt(messages=[Message(role="user", content=content) for content in contents])


@pytest.fixture
async def process():
    process = SideProcess(budget_seconds=60.0)
    yield process
    process.close()


async def test_a_rendering_is_the_same_as_here(process):
    text = await process.render(TEMPLATE, {"bos_token": "<s>"}, prompt("é" * 300_000, "b"))
    assert text == "<s>user: " + "é" * 300_000 + "\nuser: b\n"


@pytest.mark.parametrize(
    ("template", "reason"), [("{{ raise_exception('no') }}", "template_refused"), ("{% bad", "template_refused")]
)
async def test_refusals_come_back(process, template, reason):
    with pytest.raises(WithoutTokensError, match=reason):
        await process.render(template, {}, prompt("a"))
    with pytest.raises(WithoutTokensError, match="not_text"):
        await process.render(TEMPLATE, {}, prompt([{"type": "image_url"}]))
    assert process.killed == 0


@pytest.mark.parametrize(
    "bomb",
    [FOR_EVER, "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}"],
)
async def test_a_bomb_ends_with_the_budget_and_the_next_rendering_works(process, bomb):
    await process.render(TEMPLATE, {}, prompt("a"))
    process.budget_seconds = 1.0
    start = perf_counter()
    with pytest.raises(WithoutTokensError):
        await process.render(bomb, {}, prompt("a"))
    assert perf_counter() - start < 30
    process.budget_seconds = 60.0
    assert await process.render(TEMPLATE, {}, prompt("a")) == "user: a\n"


async def test_a_child_that_starts_is_ended_by_closing():
    for seconds in (0.0, 0.05, 5.0):
        process = SideProcess(budget_seconds=60.0)
        starting = process.start()
        await asyncio.wait({starting}, timeout=seconds)
        process.close()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        await until(lambda process=process: all(child.ended for child in process._alive))


async def test_who_waits_no_longer_costs_the_child_nothing(process):
    await process.render(TEMPLATE, {}, prompt("a"))
    for _ in range(3):
        hasty = asyncio.ensure_future(process.render(TEMPLATE, {}, prompt("a" * 3_000_000)))
        await asyncio.sleep(0.001)
        hasty.cancel()
        assert await process.render(TEMPLATE, {}, prompt("b")) == "user: b\n"
    assert process.killed == 0


async def test_what_is_left_running_ends_with_the_budget_too(process):
    await process.render(TEMPLATE, {}, prompt("a"))
    process.budget_seconds = 0.5
    hasty = asyncio.ensure_future(process.render(FOR_EVER, {}, prompt("a")))
    await asyncio.sleep(0.05)
    hasty.cancel()
    await until(lambda: process.killed == 1)
    process.budget_seconds = 60.0
    assert await process.render(TEMPLATE, {}, prompt("b")) == "user: b\n"


async def test_a_burst_of_large_conversations_is_rendered(process):
    """Fifty at once, as agents with long prompts send them after a pause."""
    texts = await asyncio.gather(*(process.render(TEMPLATE, {}, prompt("a" * 300_000)) for _ in range(50)))
    assert set(texts) == {"user: " + "a" * 300_000 + "\n"}


async def test_too_many_at_once_are_not_waited_for(process):
    tasks = [asyncio.ensure_future(process.render(TEMPLATE, {}, prompt("a"))) for _ in range(300)]
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {str(result) for result in results} == {"user: a\n", "render_late"}
