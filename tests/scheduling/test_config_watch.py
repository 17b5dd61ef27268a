"""A changed config file is in force soon; a wrong one changes nothing and is told once."""

import asyncio

from structlog.testing import capture_logs

from epp.scheduling.config_watch import ConfigWatch
from epp.scheduling.policies import policy_from
from epp.settings import Settings
from tests.scheduling.worlds import world
from tests.waiting import until


async def test_the_file_is_read_again_when_it_changes(tmp_path):
    path = tmp_path / "epp.yaml"
    path.write_text("profiles: {decode: {policy: round-robin}}")
    settings = Settings(config_file=path)
    scheduler = world(policy_from(settings)).scheduler
    watch = ConfigWatch(settings, lambda policy: setattr(scheduler, "policy", policy), seconds=0.01)
    await watch.start()
    with capture_logs() as logs:
        path.write_text("profiles: {decode: {policy: none-such}}")
        await until(lambda: bool(logs))
        await asyncio.sleep(0.1)
        assert [log["log_level"] for log in logs] == ["warning"]
        assert scheduler.policy.name == "round-robin"
        new = tmp_path / "new.yaml"
        new.write_text("profiles: {decode: {policy: least-tokens}}")
        new.rename(path)
        await until(lambda: scheduler.policy.name == "least-tokens")
    await watch.stop()
