"""A changed config file is in force soon; a wrong one changes nothing and is told once."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from epp.app import App
from epp.scheduling.config_watch import ConfigWatch
from epp.scheduling.policies import Policies, policies_from
from epp.settings import Settings, SettingsError
from tests.waiting import until


def replace(path: Path, text: str) -> None:
    """As Kubernetes does it: the new file comes whole."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.rename(path)


@asynccontextmanager
async def watched(path: Path, take: Callable[[Policies], None], **settings: object) -> AsyncIterator[None]:
    watch = ConfigWatch(Settings(config_file=path, **settings), take, seconds=0.01)  # type: ignore[arg-type]
    await watch.start()
    try:
        yield
    finally:
        await watch.stop()


async def test_every_profile_is_read_again_when_the_file_changes(tmp_path):
    path = tmp_path / "epp.yaml"
    path.write_text("profiles: {decode: {policy: round-robin}}")
    taken = [policies_from(Settings(config_file=path))]
    assert (taken[0].decode.name, taken[0].prefill.name, taken[0].shadow) == ("round-robin", "predicted-ttft", None)
    async with watched(path, taken.append):
        replace(path, "profiles: {decode: {policy: least-tokens}, prefill: {policy: random}}\nshadow: {policy: random}")
        await until(lambda: len(taken) == 2)
    last = taken[-1]
    assert (last.decode.name, last.prefill.name, last.shadow.name) == ("least-tokens", "random", "random")


async def test_a_wrong_file_is_told_once_and_changes_nothing(tmp_path):
    path = tmp_path / "epp.yaml"
    path.write_text("profiles: {decode: {policy: round-robin}}")
    taken: list[Policies] = []
    async with watched(path, taken.append):
        with capture_logs() as logs:
            for text in ("profiles: {prefill: {policy: none-such}}", "profiles: {}\nshadow: {scorers: [{name: nope}]}"):
                logs.clear()
                replace(path, text)
                await until(lambda: bool(logs))
                await asyncio.sleep(0.1)
                assert [log["log_level"] for log in logs] == ["warning"]
        assert "shadow" in logs[0]["error"]
        assert taken == []


def test_a_running_epp_takes_them_and_keeps_its_last_decisions(tmp_path):
    path = tmp_path / "epp.yaml"
    path.write_text("profiles: {decode: {policy: round-robin}}")
    app = App(Settings(endpoints="10.0.0.1:8000", config_file=path, secure_serving=False, kv_events=False))
    assert (app.scheduler.policy.name, app.disaggregation.policy.name) == ("round-robin", "predicted-ttft")
    path.write_text("profiles: {decode: {policy: least-tokens}, prefill: {policy: random}}\nshadow: {policy: random}")
    before = app.decisions
    app._take_policies(policies_from(app._settings))
    assert (app.scheduler.policy.name, app.disaggregation.policy.name) == ("least-tokens", "random")
    assert app.decisions is before
    app.reader.close()


def test_a_shadow_by_name_is_checked_at_the_start():
    assert policies_from(Settings(shadow_policy="round-robin")).shadow.name == "round-robin"
    with pytest.raises(SettingsError, match="none-such"):
        policies_from(Settings(shadow_policy="none-such"))
