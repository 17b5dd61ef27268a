"""Large conversations and foreign templates are rendered apart, for no longer than the budget, and nothing lingers."""

import asyncio
from time import perf_counter

import pytest

from epp.prompts.asked import ChatPrompt, Message
from epp.prompts.model import WithoutTokensError
from epp.prompts.side_process import SideProcess

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


async def test_too_many_at_once_are_not_waited_for(process):
    tasks = [asyncio.ensure_future(process.render(TEMPLATE, {}, prompt("a"))) for _ in range(40)]
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {str(result) for result in results} == {"user: a\n", "render_late"}
