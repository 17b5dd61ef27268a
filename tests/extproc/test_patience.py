"""A time limit shared by many waits."""

import asyncio

import pytest

from epp.extproc.patience import Patience


async def value(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


async def test_what_is_quick_gives_its_result_and_what_is_slow_a_timeout() -> None:
    patience = Patience(0.2)
    results = await asyncio.gather(
        *(patience.wait(value(seconds)) for seconds in (0, 60, 0.001, 60)), return_exceptions=True
    )
    assert results[0] == 0
    assert results[2] == 0.001
    assert isinstance(results[1], TimeoutError)
    assert isinstance(results[3], TimeoutError)


async def test_it_can_be_used_again_and_again() -> None:
    patience = Patience(0.05)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await patience.wait(value(60))
        assert await patience.wait(value(0)) == 0


async def test_a_cancelled_wait_is_no_timeout() -> None:
    patience = Patience(60)
    task = asyncio.create_task(patience.wait(value(60)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_error_comes_through() -> None:
    async def broken() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await Patience(60).wait(broken())


async def test_a_long_wait_does_not_delay_the_limit_of_later_ones() -> None:
    patience = Patience(0.1)
    early = asyncio.create_task(patience.wait(value(60)))
    await asyncio.sleep(0.05)
    late = asyncio.create_task(patience.wait(value(60)))
    with pytest.raises(TimeoutError):
        await early
    assert not late.done()
    with pytest.raises(TimeoutError):
        await late
