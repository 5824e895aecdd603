"""Jobs without parameter servers (PyTorch): no policy gives them one, and none is planned, measured or paid for."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coach.core.cluster import Role
from coach.core.estimation.forms import ALL_REDUCE, EITHER
from coach.core.estimation.speed import SpeedModel
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.epoch import EpochKind
from coach.core.jobs.reasons import Reason, State
from coach.core.money import to_money
from coach.plugins import names, policy
from coach.simulation.dynamics.from_journal import learn, runs_of
from coach.simulation.dynamics.job_dynamics import JobDynamics
from coach.simulation.dynamics.measured_speeds import shipped
from coach.simulation.reducer_simulation import Driver
from tests.core.lifecycle.faulty_cluster import nodes, spec, usd

pytestmark = pytest.mark.standard


def pytorch(name: str, **changes: Any) -> dict[str, Any]:
    document = spec(name, framework="pytorch", **changes)
    del document["spec"]["servers"]
    return document


def dynamics(work: float = 10.0, exchange: float = 1.0, servers: float = 0.0) -> JobDynamics:
    """An epoch takes `work` seconds, divided by the workers, and `exchange` for each further one."""
    return JobDynamics(
        lambda w, s: 1.0 / (work / w + exchange * (w - 1) + (servers * w / s if s else 0.0)),
        lambda x: 1 / (0.4 * x + 0.5) + 0.1,
        speed_noise=0.02,
    )


@given(
    name=st.sampled_from([*sorted(set(names()) - {"static"}), "static:2x2", "static:2", "coach:cheapest"]),
    jobs=st.lists(st.tuples(st.booleans(), st.integers(1, 4), st.integers(0, 30)), min_size=1, max_size=3),
    work=st.floats(1.0, 60.0),
    exchange=st.floats(0.0, 20.0),
    cores=st.sampled_from([(4, 4), (8,), (3, 3, 3)]),
    seed=st.integers(0, 99),
)
@settings(max_examples=30, deadline=None)
def test_no_policy_gives_a_job_without_servers_a_server(
    name: str,
    jobs: list[tuple[bool, int, int]],
    work: float,
    exchange: float,
    cores: tuple[int, ...],
    seed: int,
) -> None:
    records: list[Any] = []
    driver = Driver(nodes(len(cores), cores[0]), policy(name), seed=seed, journal=records.append)
    without = set()
    for number, (is_pytorch, most, at) in enumerate(jobs):
        job = f"job-{number}"
        make = pytorch if is_pytorch else spec
        without |= {job} if is_pytorch else set()
        document = make(job, workers={"max": most}, maxEpochs=6)
        driver.submit_at(float(at), job, document, dynamics(work, exchange, servers=exchange))
    driver.run()
    assert set(driver.ended) == {f"job-{number}" for number in range(len(jobs))}
    deployed = {pod.id for record in records if isinstance(record, act.DeployPods) for pod in record.pods}
    assert {pod.role for pod in deployed if pod.job in without} <= {Role.SCHEDULER, Role.WORKER}
    for record in records:
        if isinstance(record, act.SetAllocation | act.RunEpoch):
            assert (record.allocation.servers == 0) == (record.job in without)


def test_a_job_without_servers_comes_to_its_target_within_its_budget() -> None:
    records: list[Any] = []
    driver = Driver(nodes(2, 4), policy("coach"), seed=1, journal=records.append)
    driver.submit_at(0.0, "job", pytorch("job", budget=usd(0.02), workers={"max": 6}), dynamics())
    driver.run()
    ended = driver.ended["job"]
    assert (ended.state, ended.reason, ended.overshoot) == (State.SUCCEEDED, Reason.TARGET_REACHED, 0)
    assert 0 < ended.spent <= 0.02
    first = next(record for record in records if isinstance(record, act.RunEpoch))
    assert (first.kind, str(first.allocation)) == (EpochKind.PROBE, "1 worker")
    probed = {r.allocation for r in records if isinstance(r, act.RunEpoch) and r.kind is EpochKind.PROBE}
    assert len(probed) > 1, "more workers are measured"
    assert ended.final.speed is not None and ended.final.speed.form == ALL_REDUCE.name
    # 10 / w + (w - 1) is least with 3 workers.
    assert ended.final.full_epochs[-1].allocation.workers in (2, 3, 4)
    book = ended.final.spec.price_book
    for order in (record for record in records if isinstance(record, act.RunEpoch)):
        held = ended.final.spec.resources.total(order.allocation)
        assert held.cpu == pytest.approx(0.1 + order.allocation.workers)
        calls = book.invocation * order.allocation.pods * (16 + 2 * order.deadline)
        seconds = order.deadline + 5
        assert order.reservation <= to_money(book.rate(held) * seconds + calls) + 10_000, "no server is reserved"
    assert not any(isinstance(record, ev.EpochFailed) for record in records)
    learned = learn(list(runs_of(records).values())).speed
    for workers in range(1, 7):
        assert learned(workers, 0) == pytest.approx(dynamics().speed(workers, 0), rel=0.3)


@pytest.mark.parametrize("model", sorted(shipped()))
def test_the_shipped_speeds_are_finite_without_servers(model: str) -> None:
    speed = shipped()[model]
    assert all(0 < speed(workers, 0) < 1e3 for workers in range(1, 33))
    assert speed(1, 0) == speed(1, 1)
    assert speed(3, 0) == speed(3, 3)


@pytest.mark.parametrize(
    ("epoch", "served"),
    [
        # All-reduce does not pay with several workers, servers do.
        (lambda w, s: 10 / w + (4.0 * (w - 1) if s == 0 else 0.2 * w / s), True),
        (lambda w, s: 10 / w + (0.2 * (w - 1) if s == 0 else 8.0 * w / s), False),
        # One server is slower than none, three are faster: a valley between the two.
        (lambda w, s: 10 / w + (1.0 * (w - 1) if s == 0 else 12.0 / s**3), True),
    ],
)
def test_coach_measures_both_and_chooses_between_servers_and_all_reduce(epoch: Any, served: bool) -> None:
    records: list[Any] = []
    driver = Driver(nodes(2, 8), policy("coach"), seed=1, journal=records.append)
    document = spec("job", framework="pytorch", servers={"min": 0, "max": 4}, workers={"max": 4}, maxEpochs=40)
    true = JobDynamics(lambda w, s: 1.0 / epoch(w, s), lambda x: 1 / (0.05 * x + 0.5) + 0.1, speed_noise=0.02)
    driver.submit_at(0.0, "job", document, true)
    driver.run()
    ended = driver.ended["job"].final
    orders = [record for record in records if isinstance(record, act.RunEpoch)]
    probed = {order.allocation.servers > 0 for order in orders if order.kind is EpochKind.PROBE}
    assert probed == {True, False}, "both are measured"
    last = ended.full_epochs[-1].allocation
    assert (last.servers > 0) == served, f"it trains with {last}"
    best = min(epoch(w, s) for w in range(1, 5) for s in range(5))
    assert epoch(*last) < 1.3 * best, f"{last} takes {epoch(*last):.1f} s, the best {best:.1f}"
    assert ended.speed is not None and ended.speed.form == EITHER.name
    assert SpeedModel.from_dict(ended.speed.to_dict()) == ended.speed
    for before, order in itertools.pairwise(orders):
        if (before.allocation.servers > 0) != (order.allocation.servers > 0):
            assert order.group != before.group, "the other way to exchange is another group"
    # What was measured with servers says nothing of how more workers do without, and the other way round.
    learned = learn(list(runs_of(records).values())).speed
    assert learned(*last) == pytest.approx(1.0 / epoch(*last), rel=0.1)
