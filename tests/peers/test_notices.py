"""Sessions and failed requests hold across replicas: a retry or a next turn may meet any of them."""

from epp.extproc.retries import Retries
from epp.peers.group import Group
from epp.peers.notices import Notices
from epp.peers.wire import MOST_TIES, decode
from epp.scheduling.load import Load
from epp.scheduling.policies import policies_from
from epp.scheduling.sessions import Sessions
from epp.settings import Settings
from tests.peers.replicas import endpoint
from tests.scheduling.worlds import HandClock, request_of, world


class Replica:
    """What one replica hears of sessions and failures; it knows the workers 0 to `workers` - 1."""

    def __init__(self, name: int, workers: int = 3) -> None:
        self.clock = HandClock()
        self.clock.now = 1e4 * name
        self.sessions, self.retries = Sessions(), Retries()
        notices = Notices(
            hear_session=lambda session, where: self.sessions.heard(session, where, self.clock.now),
            hear_failed=lambda request, where: self.retries.heard(request, where, self.clock.now),
        )
        self.sessions.on_bind, self.retries.on_failed = notices.bound, notices.failed
        load = Load(self.clock, lambda _prefill: None)
        self.group = Group(load, name, f"replica-{name}", notices=notices)
        for i in range(workers):
            self.group.join(i, endpoint(i))

    def binds(self, name: str, i: int) -> None:
        self.sessions.bind(name, endpoint(i), self.clock.now)

    def fails(self, request: str, i: int) -> None:
        self.retries.failed(request, endpoint(i), self.clock.now)

    def tells(self, *others: "Replica") -> list[bytes]:
        said = []
        while (message := self.group.flush()) is not None:
            said.append(message)
            for other in others:
                other.group.receive("link", message, other.clock.now)
        assert not self.group.pending
        return said

    def session(self, name: str) -> object:
        return self.sessions.last(name, self.clock.now, 60.0)

    def avoids(self, request: str) -> set[str]:
        return set(self.retries.avoid(request, self.clock.now))


def test_a_session_goes_on_where_its_last_turn_went_whoever_picks():
    one, two = Replica(1), Replica(2)
    one.binds("chat", 1)
    one.tells(two)
    assert two.session("chat") == endpoint(1).incarnation
    assert two.session("another") is None
    two.binds("chat", 2)
    two.tells(one)
    assert one.session("chat") == two.session("chat") == endpoint(2).incarnation
    one.clock.now += 61
    assert one.session("chat") is None


def test_a_retry_at_another_replica_avoids_the_worker_that_failed():
    one, two = Replica(1), Replica(2)
    one.fails("request-1", 1)
    one.tells(two)
    assert two.avoids("request-1") == {endpoint(1).host_port}
    assert two.avoids("request-2") == set()
    two.fails("request-1", 0)
    two.tells(one)
    assert one.avoids("request-1") == {endpoint(1).host_port, endpoint(0).host_port}
    one.clock.now += 31
    assert one.avoids("request-1") == set()


def test_what_is_heard_is_not_told_again():
    one, two = Replica(1), Replica(2)
    one.binds("chat", 1)
    one.fails("request-1", 1)
    one.tells(two)
    assert two.tells() == []


def test_workers_that_only_the_other_one_knows_are_left_out():
    one, two = Replica(1, workers=3), Replica(2, workers=1)
    one.binds("chat", 2)
    one.fails("request-1", 2)
    one.tells(two)
    assert two.session("chat") is None
    assert two.avoids("request-1") == set()


def test_no_name_goes_over_the_wire_and_messages_stay_bounded():
    one = Replica(1)
    for i in range(2 * MOST_TIES):
        one.binds(f"secret-name-{i}", 1)
    one.fails("secret-request", 1)
    said = one.tells()
    assert b"secret" not in b"".join(said)
    assert [len(decode(each).sessions) for each in said] == [MOST_TIES] * 2


def test_a_changed_configuration_keeps_the_sessions():
    sessions = Sessions()
    settings = Settings(scorers="session:10,random")
    before, after = (policies_from(settings, sessions).decode for _ in range(2))
    here = world(before, endpoints=8)
    request = request_of(100, session="chat")
    first = here.scheduler.pick(request).decision.endpoint.name
    here.scheduler.policy = after
    assert {here.scheduler.pick(request).decision.endpoint.name for _ in range(5)} == {first}
