"""Workers that fail, stall or are new get less, come back, and are never all out."""

from prometheus_client import CollectorRegistry

from epp.endpoints.metrics import EngineMetrics, EngineSample
from epp.endpoints.pool import Pool
from epp.prompts.prompt import Request
from epp.scheduling.ejection import Ejection, EjectionRules
from epp.scheduling.outcome import Ending, Outcome
from epp.scheduling.scheduler import Scheduler
from tests.scheduling.policies import policy
from tests.scheduling.worlds import HandClock, ToldIndex, endpoint, request_of


class Pod:
    """A pool whose workers answer with the status that they are told to."""

    def __init__(self, count: int, *, slow_start: float = 0.0) -> None:
        self.clock, self.pool, self.metrics = HandClock(), Pool(), EngineMetrics(stale_seconds=1000.0)
        self.pool.replace([endpoint(i) for i in range(count)])
        self.ejection = Ejection(self.pool, self.metrics, EjectionRules(), CollectorRegistry(), self.clock)
        self.scheduler = Scheduler(
            pool=self.pool,
            index=ToldIndex(),
            policy=policy("least-in-flight"),
            metrics=self.metrics,
            clock=self.clock,
            suspended=lambda: self.ejection.places,
            slow_start_seconds=slow_start,
        )
        self.bad: set[str] = set()

    def ask(self, times: int = 1) -> list[str]:
        names = []
        for _ in range(times):
            pick = self.scheduler.pick(request_of(100))
            name = pick.decision.endpoint.name
            pick.reservation.release()
            status = 500 if name in self.bad else 200
            self.ejection.ended(Outcome(request=Request(), ending=Ending.COMPLETE, pick=pick, status=status))
            names.append(name)
            self.clock.now += 0.01
        return names


def test_a_worker_that_answers_with_errors_gets_nearly_nothing_and_comes_back_when_it_heals():
    pod = Pod(3)
    pod.bad = {"worker-0"}
    pod.ask(60)
    assert pod.ejection.status().failing == ("worker-0",)
    for _ in range(40):
        pod.ask(20)
        pod.clock.now += 1.0
    assert pod.ask(100).count("worker-0") < 5
    pod.bad = set()
    pod.clock.now += 300.0
    assert 20 < pod.ask(100).count("worker-0") < 50
    assert pod.ejection.status().failing == ()


def test_each_return_that_fails_takes_twice_as_long():
    pod = Pod(3)
    pod.bad = {"worker-0"}
    pod.ask(60)
    times = []
    for _ in range(4):
        begun = pod.clock.now
        while "worker-0" not in pod.ask():
            pod.clock.now += 0.25
        times.append(pod.clock.now - begun)
    assert times == sorted(times)
    assert times[3] > 4 * times[0]


def test_a_client_error_or_a_client_that_left_is_no_fault_of_the_worker():
    pod = Pod(2)
    for status, ending in ((400, Ending.COMPLETE), (404, Ending.COMPLETE), (None, Ending.ABORTED)):
        for _ in range(10):
            pick = pod.scheduler.pick(request_of(1))
            pick.reservation.release()
            pod.ejection.ended(Outcome(request=Request(), ending=ending, pick=pick, status=status))
    assert pod.ejection.places == frozenset()


def test_a_stream_whose_first_token_never_came_counts_where_it_was_long_due():
    pod = Pod(2)

    def ends(seconds: float, *, status: int | None, token: float | None = None) -> None:
        pick = pod.scheduler.pick(request_of(100), avoid={endpoint(1).host_port})
        pick.reservation.release()
        pod.ejection.ended(
            Outcome(
                request=request_of(100),
                ending=Ending.ABORTED,
                pick=pick,
                status=status,
                seconds=seconds,
                time_to_first_token=token,
            )
        )

    for _ in range(20):
        ends(0.5, status=None)
        ends(0.5, status=200)
        ends(60.0, status=200, token=0.1)
    assert pod.ejection.status().failing == (), "clients that leave soon, or while tokens come, say nothing"
    for status in (200, None, 200, None, 200):
        ends(60.0, status=status)
    assert pod.ejection.status().failing == ("worker-0",)


def test_when_all_fail_at_most_half_is_out_and_requests_are_still_routed():
    pod = Pod(4)
    pod.bad = {f"worker-{i}" for i in range(4)}
    pod.ask(200)
    assert len(pod.ejection.places) == 2
    assert len(set(pod.ask(50))) == 2


def test_a_worker_that_left_takes_its_record_along():
    pod = Pod(3)
    pod.bad = {"worker-0"}
    pod.ask(60)
    pod.pool.replace([endpoint(1), endpoint(2)])
    pod.pool.replace([endpoint(0, uid="new"), endpoint(1), endpoint(2)])
    assert pod.ejection.places == frozenset()


def test_a_worker_without_progress_while_work_is_queued_is_noticed():
    pod = Pod(4)
    for second in range(40):
        for column, progress in ((0, 7.0), (1, 7.0 + second)):
            pod.metrics.note(column, EngineSample(queued=3.0, running=8.0, progress=progress), pod.clock.now)
        pod.metrics.note(2, EngineSample(queued=0.0, running=0.0, progress=7.0), pod.clock.now)
        pod.clock.now += 1.0
    assert pod.ejection.status().stalled == ("worker-0",)
    pod.metrics.note(0, EngineSample(queued=3.0, running=8.0, progress=8.0), pod.clock.now)
    pod.clock.now += 1.1
    assert pod.ejection.status().stalled == ()


def test_a_new_worker_is_brought_to_its_share_slowly():
    pod = Pod(3, slow_start=30.0)
    pod.scheduler.policy = policy("predicted-ttft", exploration=0.0)
    for _ in range(30):
        pod.scheduler.pick(request_of(2000)).reservation.first_token()
    pod.pool.replace([endpoint(i) for i in range(4)])
    early = [pod.scheduler.pick(request_of(2000)).decision.endpoint.name for _ in range(8)]
    pod.clock.now += 31.0
    late = [pod.scheduler.pick(request_of(2000)).decision.endpoint.name for _ in range(8)]
    assert early.count("worker-3") < late.count("worker-3")


def test_workers_that_come_together_into_an_empty_pool_are_not_new_to_each_other():
    pod = Pod(0, slow_start=30.0)
    pod.pool.replace([endpoint(i) for i in range(3)])
    for _ in range(9):
        pod.scheduler.pick(request_of(2000)).reservation.release()
    look = pod.scheduler.look(request_of(2000))
    assert look.candidates.wait_seconds.tolist() == [0.0, 0.0, 0.0]
