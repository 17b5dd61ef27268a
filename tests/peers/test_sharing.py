"""Load sharing over real ZMQ on loopback: keys, strangers, silence, and what an operator is told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from epp.endpoints.pool import Pool
from epp.peers.addresses import Processes, static_peers
from epp.peers.curve import CurveKey
from epp.peers.sharing import LoadSharing, SharingTimes
from epp.scheduling.load import Load
from epp.settings import SettingsError, load_settings
from tests.peers.replicas import endpoint, work
from tests.waiting import free_ports, until

KEY = "a key of more than sixteen bytes"


class Process:
    """One EPP process as far as its load goes."""

    def __init__(self, settings: dict[str, str], processes: Processes | None = None) -> None:
        self.pool = Pool()
        self.load = Load(asyncio.get_running_loop().time)
        self.pool.on_join(self.load.join)
        self.pool.on_leave(self.load.leave)
        self.registry = CollectorRegistry()
        given = {"EPP_PEER_BEAT_SECONDS": "0.05", "EPP_PEER_SILENCE_SECONDS": "1", "EPP_HOST": "127.0.0.1", **settings}
        sharing = LoadSharing.from_settings(
            load_settings(given), self.load, self.pool, processes or Processes(), self.registry
        )
        assert sharing is not None
        self.sharing = sharing
        self.pool.replace(endpoint(i) for i in range(2))

    def in_flight(self) -> list[int]:
        return self.load.in_flight.tolist()

    def heard(self) -> bool:
        return any(peer.present and peer.in_step for peer in self.sharing.status().peers)


@asynccontextmanager
async def running(*processes: Process) -> AsyncIterator[None]:
    for process in processes:
        await process.sharing.start()
    try:
        yield
    finally:
        for process in processes:
            await process.sharing.stop()


def replicas(folder: Path, keys: tuple[str | None, ...]) -> list[dict[str, str]]:
    """Settings of replicas that know each other by a static list, each with its key; None: plain text."""
    ports = free_ports(len(keys))
    peers = ",".join(f"127.0.0.1:{port}" for port in ports)
    given = []
    for i, (port, key) in enumerate(zip(ports, keys, strict=True)):
        settings = {"EPP_PEERS": peers, "EPP_PEER_PORT": str(port)}
        if key is None:
            settings["EPP_PEER_PLAINTEXT"] = "true"
        else:
            file = folder / f"key-{i}"
            file.write_text(key)
            settings["EPP_PEER_KEY_FILE"] = str(file)
        given.append(settings)
    return given


@pytest.mark.parametrize("key", [KEY, None])
async def test_replicas_of_a_static_list_share_load(tmp_path: Path, key: str | None):
    one, other = (Process(settings) for settings in replicas(tmp_path, (key, key)))
    async with running(one, other):
        await until(lambda: one.heard() and other.heard())
        reservation = one.load.reserve(0, work())
        await until(lambda: other.in_flight() == [1, 0])
        reservation.release()
        await until(lambda: other.in_flight() == [0, 0])
        assert [peer.name for peer in one.sharing.status().peers] == [other.sharing.group.name]
        assert one.sharing.status().encrypted is (key is not None)
        assert one.registry.get_sample_value("epp_peers_present") == 1


async def test_processes_of_a_pod_share_load_over_ipc(tmp_path: Path):
    one, other = (Process({}, Processes(2, index, tmp_path)) for index in range(2))
    async with running(one, other):
        other.load.reserve(1, work())
        await until(lambda: one.in_flight() == [0, 1])


@pytest.mark.parametrize("wrong", ["another key of sixteen bytes", None])
async def test_a_stranger_hears_nothing_and_is_told_of_once(tmp_path: Path, wrong: str | None):
    one, stranger = (Process(settings) for settings in replicas(tmp_path, (KEY, wrong)))
    one.sharing._times = SharingTimes(beat=0.05, patience=0.3)
    structlog.reset_defaults()
    with capture_logs() as logs:
        async with running(one, stranger):
            one.load.reserve(0, work())
            await until(lambda: any(line["event"].startswith("load sharing does not work") for line in logs))
            await asyncio.sleep(0.3)
            assert stranger.in_flight() == [0, 0]
            assert "nothing is heard from tcp://127.0.0.1:" in one.sharing.status().problem
    assert one.registry.get_sample_value("epp_peers_working") == 0


async def test_one_that_goes_in_good_order_takes_its_load_along(tmp_path: Path):
    one, other = (Process(settings) for settings in replicas(tmp_path, (KEY, KEY)))
    async with running(one):
        async with running(other):
            other.load.reserve(0, work())
            await until(lambda: one.in_flight() == [1, 0])
        await until(lambda: one.in_flight() == [0, 0])
        assert one.sharing.status().vanished == 0


def test_without_peers_there_is_nothing_to_share_with():
    pool, load = Pool(), Load(lambda: 0.0)
    assert LoadSharing.from_settings(load_settings({}), load, pool, Processes(), CollectorRegistry()) is None
    assert load.listener is None


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"EPP_PEERS": "10.0.0.7"}, "EPP_PEER_KEY_FILE"),
        ({"EPP_PEERS": "10.0.0.7", "EPP_PEER_KEY_FILE": "/nowhere"}, "/nowhere"),
        ({"EPP_PEERS": "10.0.0.7:x", "EPP_PEER_PLAINTEXT": "true"}, "10.0.0.7:x"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, str], names: str):
    with pytest.raises(SettingsError, match=names):
        LoadSharing.from_settings(load_settings(settings), Load(lambda: 0.0), Pool(), Processes(), CollectorRegistry())


def test_a_short_key_is_refused(tmp_path: Path):
    (tmp_path / "key").write_text("short\n")
    settings = load_settings({"EPP_PEERS": "10.0.0.7", "EPP_PEER_KEY_FILE": str(tmp_path / "key")})
    with pytest.raises(SettingsError, match="at least 16 bytes, found 5"):
        LoadSharing.from_settings(settings, Load(lambda: 0.0), Pool(), Processes(), CollectorRegistry())


def test_static_peers_in_every_form():
    assert static_peers("10.0.0.7, epp-1.epp:9000,[fd00::1]:9001 ,fd00::2", 9092) == [
        ("10.0.0.7", 9092),
        ("epp-1.epp", 9000),
        ("fd00::1", 9001),
        ("fd00::2", 9092),
    ]


def test_who_has_the_key_has_the_secret_of_the_prefix_keys_and_not_the_other_way_round(tmp_path: Path):
    one, same, other = (tmp_path / name for name in ("one", "same", "other"))
    one.write_text("correct horse battery staple")
    same.write_text("correct horse battery staple")
    other.write_text("another horse battery staple")
    keys = [CurveKey.read(path) for path in (one, same, other)]
    assert keys[0].prefix_secret == keys[1].prefix_secret != keys[2].prefix_secret
    assert len(keys[0].prefix_secret) == 32
    assert keys[0].prefix_secret not in keys[0].secret
